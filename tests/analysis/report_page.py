"""A report page as the tests read it: html.parser only, and errors for anything a browser would have
to guess."""

import base64
import hashlib
import html.parser
import re

VOID = {"meta", "br", "img", "hr", "col", "link", "input"}
FORBIDDEN = {"link", "iframe", "object", "embed", "img", "form", "base"}


class Page(html.parser.HTMLParser):
    """figures: {id: {"caption", "rows": [[cell]], "svg": bool}}; texts of the page's parts."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.source = text
        self.stack, self.ids, self.figures, self.texts = [], [], {}, []
        self.references = []
        self.scripts = 0
        self.figure = self.row = None
        self.feed(text)
        self.close()
        assert not self.stack, f"unclosed: {self.stack}"
        assert len(self.ids) == len(set(self.ids)), "an id is there twice"

    def handle_starttag(self, tag, attributes):
        assert tag not in FORBIDDEN, f"<{tag}> on a page that loads nothing"
        if tag == "script":
            assert not attributes or dict(attributes).get("type") == "application/json", attributes
            self.scripts += not attributes
        for name, value in attributes:
            assert not name.startswith("on"), f"{name} on <{tag}>: scripts don't belong here"
            if name in ("src", "href", "action", "data"):
                self.references.append(value)
            if name == "id":
                self.ids.append(value)
        if tag not in VOID:
            self.stack.append(tag)
        attributes = dict(attributes)
        if tag == "figure":
            self.figure = {"caption": "", "rows": [], "svg": False}
            self.figures[attributes["id"]] = self.figure
        elif self.figure is not None and tag == "svg":
            self.figure["svg"] = True
        elif self.figure is not None and tag == "tr":
            self.row = []
            self.figure["rows"].append(self.row)
        elif tag in ("td", "th") and self.row is not None:
            self.row.append("")

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag):
        assert self.stack and self.stack[-1] == tag, f"</{tag}> closes <{self.stack[-1:]}>"
        self.stack.pop()
        if tag == "figure":
            self.figure = None
        elif tag == "tr":
            self.row = None

    def handle_data(self, data):
        if "style" in self.stack or "script" in self.stack:
            return
        self.texts.append(data)
        if self.figure is not None and "figcaption" in self.stack:
            self.figure["caption"] += data
        elif self.row and self.stack[-1] in ("td", "th"):
            self.row[-1] += data

    @property
    def text(self):
        return " ".join(self.texts)


def check_self_contained(page):
    outside = [r for r in page.references if not (r or "").startswith(("#", "data:image/png;base64,"))]
    assert not outside, f"references to other files: {outside}"
    for match in re.finditer(r"url\(\s*['\"]?([^)]*)", page.source):
        assert match.group(1).startswith(("data:", "#")), match.group(0)
    assert "@import" not in page.source
    # Its one script is the only one that a browser runs, whatever tokens and titles contain.
    policy = re.search(r"Content-Security-Policy\" content=\"([^\"]*)", page.source).group(1)
    allowed = re.fullmatch(r"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
                           r"script-src 'sha256-(\S+)'", policy)
    script = re.findall(r"<script>(.*?)</script>", page.source, re.DOTALL)[-1]
    assert page.scripts == 1 and \
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == allowed.group(1)
    assert not re.search(r"(?:src|href)\s*=\s*['\"]?\s*(?:https?:)?//", page.source)


def check_captions(page):
    assert page.figures, "a report without a single figure"
    for name, figure in page.figures.items():
        assert figure["caption"].strip(), f"{name}: no caption"
        in_table = any("n" in row or "(n = " in " ".join(row) for row in figure["rows"])
        assert "n = " in figure["caption"] or in_table, f"{name}: no number of terms"
        assert figure["svg"] or figure["rows"], f"{name}: nothing to look at"
