"""Runs the commands and the Python blocks of README.md, docs/tutorial.md, docs/viewer.md and docs/recipes, each
document in a scratch folder of its own, as a reader would in a clone.
Usage: check_documents.py REPOSITORY [DOCUMENT...] [--package FOLDER]

What runs: a line that begins with `blockscope` in an indented or fenced block and names a
shipped model (models/...) or a file that an earlier command of the document made; and a fenced Python block that does.
Nothing else can run here: it names another checkpoint or a reader's own file. Of such a command the options are looked
up in `--help-all`, and such a block is compiled. The texts stay as they are, but for fewer prompts (SHORTER).
Also: links of all user documents lead to files and headings that are there."""

import argparse
import ast
import contextlib
import functools
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

BINARY = os.environ.get("BLOCKSCOPE_BINARY", "")

# Added where the document doesn't have them: enough to see that a command works.
SHORTER = {"capture": {"--limit": 2}, "verify": {"--limit": 2, "--repeats": 1}, "bench": {"--limit": 2, "--runs": 1},
           "eval": {"--per-cell": 1}, "study": {"--per-cell": 1}}
SHORTER_STUDY = {"needle": {"--depths": 1}, "tau": {"--repeats": 1}, "time": {"--repeats": 1}}
ALWAYS = {"help", "doctor"}  # need neither a model nor a file


class Failed(Exception):
    pass


def blocks(text: str):
    """(language, first line's number, lines) of each fenced block, and of each indented one as "indented"."""
    fence, language, first, found = False, "", 0, []
    for number, line in enumerate(text.split("\n") + ["end"], 1):
        marker = re.match(r"\s*```(\w*)", line)
        if marker and not fence:
            if found:
                yield "indented", first, found
            fence, language, first, found = True, marker[1] or "text", number + 1, []
        elif marker or (not fence and found and line.strip() and not line.startswith("    ")):
            yield (language if fence else "indented"), first, found
            fence, found = False, []
        elif fence:
            found.append(line)
        elif line.startswith("    ") or (found and not line.strip()):
            first = first if found else number
            found.append(line[4:])


def commands(text: str):
    """(line's number, command) of each command of blockscope in a shell block; lines that end in \\ are joined."""
    for language, first, lines in blocks(text):
        if language not in ("indented", "text", "bash", "sh", "console"):
            continue
        whole, start = "", 0
        for number, line in enumerate(lines, first):
            start = start if whole else number
            whole += line
            if whole.endswith("\\"):
                whole = whole[:-1]
                continue
            if re.match(r"blockscope [a-z]", whole):
                yield start, whole
            whole = ""


def words_of(command: str) -> list[str]:
    """The words of the first command of a line, comments and redirections left out."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|<>;&")
    lexer.whitespace_split, lexer.commenters = True, "#"
    words = list(lexer)
    end = next((i for i, word in enumerate(words) if set(word) <= set("|<>;&")), len(words))
    return words[words.index("blockscope"):end]


def names_in(words: list[str]) -> list[str]:
    """The words, and the values within them: reuse.json of flashblock,tau=2,reuse=reuse.json."""
    return [part for word in words for part in re.split(r"[=,]", word)] + words


class Document:
    """A document's commands, in a folder that looks like a clone to them."""

    def __init__(self, root: pathlib.Path, path: pathlib.Path, folder: pathlib.Path, package: str | None, viewer: bool):
        self.path, self.folder, self.package, self.viewer = path, folder, package, viewer
        self.name = str(path.relative_to(root))
        self.text = path.read_text()
        self.counts = dict.fromkeys(("commands", "looked up", "Python blocks", "compiled"), 0)
        for name in ("models", "docs", "scripts"):
            (folder / name).symlink_to(root / name)
        (folder / ".bin").mkdir()
        (folder / ".bin" / "blockscope").symlink_to(pathlib.Path(BINARY).resolve())
        self.environment = {**os.environ, "PATH": f"{folder / '.bin'}:{os.environ['PATH']}", "COLUMNS": "120"}
        if package:
            self.environment["PYTHONPATH"] = package

    def run(self) -> None:
        parts = [(number, "command", command) for number, command in commands(self.text)]
        parts += [(first, "python", "\n".join(lines)) for language, first, lines in blocks(self.text)
                  if language == "python"]
        for number, kind, what in sorted(parts):
            try:
                self.run_python(what) if kind == "python" else self.run_command(what)
            except Failed as failure:
                raise Failed(f"{self.name}:{number}: {what}\n{failure}") from None

    def made(self, name: str) -> bool:
        """A shipped model or a file next to one, or a file that this document made."""
        path = self.folder / name
        if not name or name.startswith(("/", "-")) or not path.exists():
            return False
        return name.startswith("models/") or path.is_file()

    def run_command(self, command: str) -> None:
        words = words_of(command)
        name = words[1]
        dumps = name == "train" and "--dump-prompts" in words
        lists = name == "analyze" and "--list" in words
        window = name == "view" and not (self.viewer and {"--screenshot", "--csv"} & set(words))
        known = any(self.made(part) for part in names_in(words)) or dumps or lists or name in ALWAYS
        if window or not known or (name == "train" and not dumps):
            self.look_up(name, words[2:])
            return
        self.start(["bash", "-o", "pipefail", "-c", self.with_fewer_prompts(command, words)])
        self.counts["commands"] += 1

    def with_fewer_prompts(self, command: str, words: list[str]) -> str:
        added = dict(SHORTER.get(words[1], {}))
        if words[1] == "study":
            added = {} if words[2] == "video" else added | SHORTER_STUDY.get(words[2], {})  # of a trace, not of prompts
        if "--prompts" not in words:
            added.pop("--limit", None)
        text = "".join(f" {option} {value}" for option, value in added.items() if option not in words)
        return re.sub(r"\bblockscope \w+", lambda match: match[0] + text, command, count=1)

    def look_up(self, name: str, words: list[str]) -> None:
        known = options_of(name)
        if name == "view" and not known:  # a build without the viewer
            return
        for word in words:
            option = word.split("=")[0]
            if re.match(r"--?[a-z]", option) and option not in known:
                raise Failed(f"blockscope {name} has no option {option}")
        self.counts["looked up"] += 1

    def run_python(self, block: str) -> None:
        tree = compile(block, self.name, "exec", ast.PyCF_ONLY_AST)
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
        texts = {text for text in texts if isinstance(text, str)}
        needs_package = "blockscope" in re.findall(r"^\s*(?:import|from) (\w+)", block, re.MULTILINE)
        if (needs_package and not self.package) or not any(self.made(text) for text in texts):
            self.counts["compiled"] += 1
            return
        self.start([sys.executable, "-c", block])
        self.counts["Python blocks"] += 1

    def start(self, command: list[str]) -> None:
        done = subprocess.run(command, cwd=self.folder, env=self.environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=300)
        if done.returncode != 0:
            raise Failed(f"exit code {done.returncode}:\n{done.stdout[-2000:]}")


@functools.cache
def options_of(name: str) -> set[str]:
    for option in ("--help-all", "--help"):  # a command without less usual options has no --help-all
        done = subprocess.run([BINARY, name, option], capture_output=True, text=True)
        if done.returncode == 0:
            break
    else:
        if "lacks the viewer" in done.stderr:
            return set()
        raise Failed(f"blockscope {name} is no command:\n{done.stderr}")
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", done.stdout))


def has_viewer() -> bool:
    return bool(options_of("view"))


def headings(path: pathlib.Path) -> set[str]:
    """As GitHub names them."""
    plain = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    found: set[str] = set()
    for title in re.findall(r"^#+ (.*)$", plain, re.MULTILINE):
        title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        name = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
        found.add(name if name not in found else f"{name}-1")
    return found


def broken_links(root: pathlib.Path) -> list[str]:
    broken = []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        plain = re.sub(r"```.*?```|`[^`\n]*`", "", path.read_text(), flags=re.DOTALL)
        for link in re.findall(r"\]\(([^)\s]+)\)", plain):
            file, _, heading = link.partition("#")
            target = path.parent / file if file else path
            if re.match(r"[a-z]+:", link):
                continue
            if not target.exists():
                broken.append(f"{path.relative_to(root)}: {link}: no such file")
            elif heading and target.suffix == ".md" and heading not in headings(target):
                broken.append(f"{path.relative_to(root)}: {link}: no such heading")
    return broken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("documents", nargs="*", type=lambda text: pathlib.Path(text).resolve())
    parser.add_argument("--package")
    given = parser.parse_args()
    if not os.access(BINARY, os.X_OK):
        print(f"skipped: no binary at '{BINARY}'; build the target blockscope")
        sys.exit(77)
    recipes = sorted((given.root / "docs" / "recipes").glob("*.md"))
    assert recipes, "docs/recipes is empty"
    documents = [given.root / name for name in ("README.md", "docs/tutorial.md", "docs/viewer.md")] + recipes
    viewer, failures = has_viewer(), broken_links(given.root)
    for path in given.documents or documents:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            document = Document(given.root, path, pathlib.Path(folder), given.package, viewer)
            with contextlib.ExitStack() as stack:
                stack.callback(lambda: print(f"{document.name}: {document.counts}, {time.monotonic() - begin:.1f} s"))
                try:
                    document.run()
                    if document.counts["commands"] + document.counts["Python blocks"] == 0:
                        raise Failed(f"{document.name}: nothing of it ran; let a command name a shipped model")
                except Failed as failure:
                    failures.append(str(failure))
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
