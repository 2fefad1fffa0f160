"""How many cases a law is tried on: few and fixed ones in the gate, many random ones in `make test-long`."""

import hypothesis
from hypothesis import HealthCheck

# Neither how long an example takes nor that a fixture is shared by the examples of a test says anything about a law.
_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
hypothesis.settings.register_profile("gate", max_examples=25, derandomize=True, database=None, **_COMMON)
hypothesis.settings.register_profile("long", max_examples=500, print_blob=True, **_COMMON)
hypothesis.settings.load_profile("gate")


def examples(num: int) -> hypothesis.settings:
    """Decorate a law that is dearer, or less dear, than others: `num` where they have a hundred examples."""
    return hypothesis.settings(max_examples=max(2, num * hypothesis.settings.default.max_examples // 100))
