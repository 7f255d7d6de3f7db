"""A command of the shell with plugins, ``blockscope capture ... --plugin my_method.py``: the binary starts Python for it."""

from __future__ import annotations

import os
import sys
import traceback


def _plugins_of(words: list[str]) -> list[str]:
    """The files that ``--plugin FILE`` and ``--plugin=FILE`` name, in their order."""
    from .errors import UsageError

    files = []
    for index, word in enumerate(words):
        if word == "--plugin":
            files.append(words[index + 1] if index + 1 < len(words) else "")
        elif word.startswith("--plugin="):
            files.append(word.removeprefix("--plugin="))
    for file in files:
        if not file or file.startswith("-"):
            raise UsageError(f"--plugin: expected a Python file, got {file!r}")
    return files


def main() -> int:
    """Loads the plugins, then runs the command that ``sys.argv`` has. Returns its exit code."""
    from . import _core, own_metrics, plugins
    from .errors import Error, UsageError
    from .runtime import _runtime

    given = sys.argv[1:]
    words = [os.fsencode(word) for word in ["blockscope", *given]]
    try:
        for file in _plugins_of(given):
            plugins.load(file)
        if given[0] in _core.commands():  # they need no torch
            own_metrics.pass_on(_core)
            return int(_core.main(words))
        runtime = _runtime()
        plugins.pass_on(runtime)
    except Error as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, ImportError):
            traceback.print_exception(error.__cause__)
        print(f"blockscope: error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    code = int(runtime.main(words))
    cause = runtime.plugin_cause()
    if cause is not None:
        traceback.print_exception(cause)
    return code
