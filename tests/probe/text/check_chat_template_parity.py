"""Our chat-template renderer against jinja2, configured as `transformers` does.

Usage: check_chat_template_parity.py <text_oracle_client> [template files]; exit 77 without jinja2.
"""

import datetime
import itertools
import json
import pathlib
import sys

try:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("skipped: the Python package `jinja2` is not installed")
    sys.exit(77)

from oracle_client import OracleClient

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "data" / "chat_templates"

SPECIAL_TOKENS = {"bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>"}
CONTENTS = {
    "system": ["You are terse.", " S\n", "\u3000\u00a0S\x1f\n"],
    "user": [
        "Hi",
        "",
        " two\nlines \n",
        "<tool_response>\nx\n</tool_response>",
        "\u2003\tpadded with \u00a0 white space\u3000\x1c\r\n",
        "naïve 日本語 👩‍👩‍👧‍👦 {{ not.a.tag }} {% raw %}",
    ],
    "assistant": [
        "Hello.",
        "<think>\nhmm\n</think>\n\nThe answer.",
        "\n\nstarts with newlines",
        "no open tag</think>\n\nrest</think> again\n",
        "<think>\n\n</think>\n\n",
        "<think>a</think>b<think>c</think>\n\nd",
    ],
}
SHAPES = ["u", "su", "ua", "uau", "suau", "uaua", "suauau", "uaa", "s", "usu", "a", "auau"]
ROLES = {"s": "system", "u": "user", "a": "assistant"}


def conversations():
    for shape in SHAPES:
        choices = [CONTENTS[ROLES[letter]] for letter in shape]
        for contents in itertools.islice(itertools.product(*choices), 0, None, 7 ** max(0, len(shape) - 3)):
            messages = [
                {"role": ROLES[letter], "content": content}
                for letter, content in zip(shape, contents)
            ]
            for generate in (True, False):
                yield {"messages": messages, "add_generation_prompt": generate}
            for thinking in (True, False):
                yield {
                    "messages": messages,
                    "add_generation_prompt": True,
                    "enable_thinking": thinking,
                }


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def rendered(template, request, special_tokens):
    """What jinja2 makes of the request, or None if the template refuses it."""
    try:
        return template.render(tools=None, documents=None, **request, **special_tokens)
    except (jinja2.exceptions.TemplateError, TypeError):
        return None


def main():
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda text: datetime.datetime.now().strftime(text)
    files = [pathlib.Path(p) for p in sys.argv[2:]] or sorted(FOLDER.glob("*.jinja"))
    client = OracleClient(sys.argv[1])
    requests = list(conversations())
    failures = refused = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        template = environment.from_string(text)
        answer = client.ask(template=text, special_tokens=SPECIAL_TOKENS, conversations=requests)
        if "error" in answer:
            print(f"{file.name}: {answer['error']}")
            failures += 1
            continue
        for request, ours in zip(requests, answer["rendered"], strict=True):
            theirs = rendered(template, request, SPECIAL_TOKENS)
            refused += theirs is None
            if ours != theirs:
                failures += 1
                print(f"{file.name}: {request}\n  ours   {ours!r}\n  theirs {theirs!r}")
    client.close()
    print(f"jinja2 {jinja2.__version__}: {len(files)} templates, {len(requests)} conversations "
          f"each, {refused} refused by their template, {failures} differences")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
