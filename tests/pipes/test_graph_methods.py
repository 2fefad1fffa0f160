"""What is declared for type checkers is what is there."""

import ast

import method_stub


def declarations(text):
    return [ast.dump(node) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]


def test_the_stub_declares_the_functional_forms_that_there_are():
    written = declarations(method_stub.PATH.read_text())
    assert written == declarations(method_stub.stub_text()), "python tests/pipes/method_stub.py writes it anew"
