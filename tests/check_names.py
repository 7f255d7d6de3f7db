"""No name of a namespace has two definitions in the sources: that is undefined behaviour where both are
linked, and a reader who finds one takes it for the other. A file's own names (unnamed namespaces, static)
are its own in its folder, so that the files of a folder compile in batches (-DUNITY=ON).

check_names.py ROOT [--planted]: with --planted it must find the two that it adds."""

import collections
import pathlib
import re
import sys

SOURCES = {".h", ".cpp", ".cu", ".cuh"}
# Tests that put a function in place of the library's: said where they do it.
REPLACED = {"blockscope::available_linear_kernels(Element,int64_t*)": "tests/kernels/test_linear_kernels_amx.cpp",
            "blockscope::available_tile_kernels(int64_t*)": "tests/kernels/test_tile_kernels_amx.cpp"}
TYPE = re.compile(r"(?:^|[;}\s])(?:enum class|enum|struct|class|union)\s+(?:alignas\([^)]*\)\s*)?([A-Za-z_]\w*)\s*"
                  r"(?:final\s*)?(?::[^:].*)?$", re.DOTALL)
ALIAS = re.compile(r"(?:^|[;}\s])using\s+([A-Za-z_]\w*)\s*=[^;]*$")
CONSTANT = re.compile(r"(?:^|[;}\s])(?:inline |static |thread_local )*(?:const|constexpr|constinit) [^;=({]*?"
                      r"([A-Za-z_]\w*)(?:\[\w*\])?\s*(?:=.*)?$")
FUNCTION = re.compile(r"^(?P<before>.*?)(?P<name>~?[A-Za-z_][\w:]*|operator\s*\S+)\s*\((?P<arguments>.*)\)\s*"
                      r"(?:const|noexcept|override|final|->\s*[\w:<>&*,\s]+|\s)*(?::[^:].*)?$", re.DOTALL)


def bare(text):
    """Without comments, preprocessor lines, and what literals hold."""
    text = re.sub(r'R"(\w*)\((.*?)\)\1"', '""', text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"__launch_bounds__\([^()]*(?:\([^()]*\)[^()]*)*\)", " ", text)
    text = re.sub(r"^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.MULTILINE)
    return re.sub(r'"(?:\\.|[^"\\\n])*"' + r"|(?<!\w)'(?:\\.|[^'\\\n])+'", '""', text)


def kinds(text):
    """-> names of parameters dropped, so that a declaration's two spellings are one"""
    depth, part, parts = 0, "", []
    for letter in text + ",":
        depth += letter in "<({["
        depth -= letter in ">)}]"
        if letter == "," and depth == 0:
            parts.append(part.strip())
            part = ""
        else:
            part += letter
    return ",".join(re.sub(r"\s*=.*|(?<=[\w>&*\]])\s+\w+$|\s+", lambda m: "" if m[0].strip() else " ", p, flags=re.DOTALL)
                    for p in parts if p)


def definitions(text):
    """Yields (name with its namespaces, kind) of what is defined at the scope of a named namespace."""
    text = bare(text)
    scopes, since, depth_inside = [], 0, 0
    at = 0
    while at < len(text):
        letter = text[at]
        if letter == "{":
            head = " ".join(text[since:at].split())
            if depth_inside == 0:
                space = re.search(r"(?:^|[;}\s])(?:inline )?namespace ?([\w:]*)$", head)
                if space:
                    scopes.append(space[1] or "(own)")
                    since = at = at + 1
                    continue
                yield from defined(head, "::".join(scopes))
            depth_inside += 1
        elif letter == "}":
            if depth_inside:
                depth_inside -= 1
                if depth_inside == 0:
                    since = at + 1 if re.match(r"\s*[^;=,\s]", text[at + 1:]) else since
            elif scopes:
                scopes.pop()
                since = at + 1
        elif letter == ";" and depth_inside == 0:
            head = " ".join(text[since:at].split())
            alias = ALIAS.search(head)
            if scopes and alias and "template" not in head:
                yield f"{'::'.join(scopes)}::{alias[1]}", "type"
            constant = CONSTANT.search(head.split("=")[0].split("{")[0])
            if "(own)" in scopes and constant and "(" not in head.split("=")[0].split("{")[0]:
                yield f"{'::'.join(scopes)}::{constant[1]}", "constant"
            since = at + 1
        at += 1


def defined(head, space):
    if not space or head.startswith(("extern", "template <>", "template<>")):
        return
    head = re.sub(r"^(?:.*[;}] )?", "", head) if "(" not in head else head
    kind = TYPE.search(head)
    if kind and "(" not in head.split(kind[1])[0].replace("alignas(", ""):
        if not re.search(r"<[^<>]*>\s*$", head):
            yield f"{space}::{kind[1]}", "type"
        return
    constant = CONSTANT.search(head.split("=")[0])
    if "(own)" in space and constant and "(" not in head.split("=")[0]:
        yield f"{space}::{constant[1]}", "constant"
        return
    if head.startswith("static "):
        space, head = f"{space}::(own)", head.removeprefix("static ")
    if "=" in re.sub(r"\(.*?\)|operator\s*\S+", "", head):
        return
    call = FUNCTION.match(head)
    if call and "::" not in call["name"] and call["before"].strip():
        limited = " ".join(re.findall(r"requires [^{]*", head))
        yield f"{space}::{call['name']}({kinds(call['arguments'])}){limited}", "function"


def find(root, planted):
    found = collections.defaultdict(set)
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root)
        if path.suffix in SOURCES and name.parts[0] != "build" and not name.parts[0].startswith("."):
            for defined_name, kind in definitions(path.read_text()):
                if "(own)" in defined_name:
                    if path.suffix != ".cpp":
                        continue
                    defined_name = f"{name.parent}: {defined_name}"
                found[defined_name].add((str(name), kind))
    if planted:
        for file in ("one.h", "two.cpp"):
            for defined_name, kind in definitions("namespace blockscope { struct Planted { int a; };\n"
                                                  "double planted(double value, int) { return value; } }"):
                found[defined_name].add((file, kind))
    return found


def main():
    found = find(pathlib.Path(sys.argv[1]), "--planted" in sys.argv)
    assert len(found) > 1000, len(found)
    twice = {name: sorted({file for file, _ in places} - {REPLACED.get(name)}) for name, places in found.items()}
    twice = {name: files for name, files in twice.items() if len(files) > 1}
    for name, files in sorted(twice.items()):
        print(f"{name}: defined in {', '.join(files)}")
    print(f"{len(found)} names, {len(twice)} of them defined twice")
    return 1 if twice else 0


if __name__ == "__main__":
    sys.exit(main())
