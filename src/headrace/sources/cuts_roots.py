"""Which files a manifest of cuts may name: those below some folders, wherever links lead."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ConfigError, SourceError

_SHOWN_ROOTS = 4


@dataclass(frozen=True, slots=True)
class Roots:
    """Folders that recordings and stored arrays may lie in.

    Attributes:
        folders: Real paths.
    """

    folders: tuple[str, ...]

    @classmethod
    def of(cls, root: object, manifests: Iterable[str]) -> Roots:
        """Return those that the user named; without any, the folders of the manifests and the current one.

        Raises:
            ConfigError: What was named is not there.
        """
        if root is None:
            given = sorted({os.path.dirname(path) for path in manifests})
            with contextlib.suppress(OSError):  # it was removed
                given.append(os.getcwd())
        else:
            named = [root] if isinstance(root, str | os.PathLike) or not isinstance(root, Iterable) else root
            given = []
            for folder in named:
                if not isinstance(folder, str | os.PathLike) or not os.path.isdir(folder):
                    raise ConfigError(
                        f"root is the folder that recordings lie in, or several, and this is none: {folder!r}",
                        where="CutSource(root=...)",
                        fix='give an existing folder; root="/" allows any file of the machine',
                    )
                given.append(os.path.abspath(os.fspath(folder)))
        return cls(tuple(dict.fromkeys(os.path.realpath(folder) for folder in given)))

    def resolve(self, path: str, where: str) -> str:
        """Return the real path of a file that a manifest names; relative ones start at the current folder.

        Raises:
            SourceError: It is in none of the folders, or is no path.
        """
        try:
            real = os.path.realpath(path)
        except (OSError, ValueError) as error:
            raise SourceError(
                f"the manifest names {path!r}, which is not a usable path: {error}", where=where
            ) from error
        for folder in self.folders:
            if real.startswith(folder) and (len(real) == len(folder) or folder == "/" or real[len(folder)] == "/"):
                return real
        more = ", ..." if len(self.folders) > _SHOWN_ROOTS else ""
        raise SourceError(
            f"the manifest names the file {path!r}"
            + (f", which is {real!r}" if real != path else "")
            + f", and only files below {', '.join(self.folders[:_SHOWN_ROOTS])}{more} are read",
            where=where,
            fix=f'if you trust the manifest, say where its files are: CutSource(..., root="{os.path.dirname(real)}"), '
            "or a folder above it",
        )


NO_ROOTS = Roots(())


def open_regular(path: str) -> int:
    """Open a file for reading, and no pipe or device; return its descriptor.

    Raises:
        OSError: It cannot be opened, or is no regular file.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"this is no regular file: {path}")
    return fd
