"""The report's page in Chromium: every part that a reader can use, with numbers from h5py and numpy, and the page
without scripts and in print: check_report_browser.py MODEL. One file of over 300 lines, because all tests share a
trace, a page and a browser."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
sys.path += [str(ROOT), str(ROOT / "cli")]
from browser import Browser, skip_without_browser  # noqa: E402
from report_numbers import cosines, head_means  # noqa: E402
from report_reader import Reader, check_close, decided_at, last_number  # noqa: E402
from sets_reference import Trace  # noqa: E402
from test_attention_map import expected  # noqa: E402

BLOCKSCOPE = os.environ["BLOCKSCOPE_BINARY"]
PATHS = ("/attention/external", "/attention/internal")


def run(*arguments):
    subprocess.run([BLOCKSCOPE, *map(str, arguments)], check=True, capture_output=True, timeout=300)


def test_steps(reader, trace, shown):
    reader.open()
    when = decided_at(trace, *shown)
    rows = trace.blocks()[shown]
    block = int(trace.step["block_start"][rows[0]])
    known = [p for p in range(block, block + trace.block_length) if p not in when]
    last = int(trace.step["step"][rows].max())
    assert reader.step() == (last, last)
    def check(step):
        assert reader.step() == (step, last)
        assert reader.decided() == sorted(known + [p for p, at in when.items() if at <= step]), step
    check(last)
    for step in range(last - 1, -1, -1):
        reader.browser.key("ArrowLeft")
        check(step)
    reader.browser.key("ArrowLeft")
    check(0)
    reader.browser.key("ArrowRight")
    check(1)
    reader.browser.click(".bar button[title^='One step forward']")
    check(2)
    reader.browser.click(".bar button[title^='One step back']")
    check(1)
    reader.choose("Sequence", 0)
    assert "sequence=0" in reader.see("location.hash") and reader.decided()
    first = reader.see("location.hash")
    reader.browser.key("ArrowRight", shift=True)
    assert reader.see("location.hash") != first
    reader.browser.key("ArrowLeft", shift=True)
    assert reader.see("location.hash") == first


def test_play(reader, shown):
    reader.open(f"#sequence={shown[0]}&block={shown[1]}&step=0")
    last = reader.step()[1]
    reader.browser.key("p")
    reader.browser.wait("document.querySelector('.bar output').textContent.startsWith('step 2 ')")
    reader.browser.key("p")
    now = reader.step()[0]
    reader.see("new Promise((done) => setTimeout(done, 1000))")
    assert reader.step()[0] == now < last, "a pause goes on"
    reader.open(f"#sequence={shown[0]}&block={shown[1]}&step={last - 1}")
    reader.browser.click(".bar .steps button:nth-child(2)")
    assert reader.see("document.querySelector('.bar .steps button:nth-child(2)').textContent") == "Pause"
    reader.browser.wait("document.querySelector('.bar .steps button:nth-child(2)').textContent === 'Play'")
    assert reader.step() == (last, last)


def test_link(reader, trace, shown):
    reader.open()
    reader.browser.key("ArrowLeft")
    reader.browser.key("ArrowLeft")
    reader.choose("Layer", 2)
    reader.choose("Head", 1)
    seen = """[document.querySelector("#explore-trajectory").innerText, document.querySelector("#stability").innerText,
               document.querySelector("#explore-attention").innerText, document.querySelector(".bar output").innerText,
               ...[...document.querySelectorAll(".bar select")].map((one) => one.value)]"""
    before, link = reader.see(seen), reader.see("document.querySelector('.bar a').getAttribute('href')")
    step = reader.step()[0]
    assert link == f"#sequence={shown[0]}&block={shown[1]}&step={step}&layer=2&head=1" == reader.see("location.hash")
    reader.open(link)
    assert reader.see(seen) == before
    assert reader.see("[...document.querySelectorAll('.bar select')].map((one) => one.value)") == [
        str(shown[0]), str(shown[1]), "2", "1"]
    reader.open("#sequence=99&block=-1&step=1e9&layer=77&head=x")  # of another page
    assert reader.step()[0] == reader.step()[1]
    reader.open("#stability")
    assert reader.see("scrollY") > 0


def test_hover(reader, trace):
    reader.open()
    masses = {}
    for row, _, n, _ in trace.recorded():
        out, inside = (trace.at(f"/attention/lse_{side}", row)[..., trace.valid(row)]
                       for side in ("external", "internal"))
        for cell, mass in np.ndenumerate((1 / (1 + np.exp(inside - out))).mean(-1)):
            masses.setdefault(cell, []).append(mass)
    [[x, y, width, height]] = reader.boxes("#external-mass svg g[id*='plot_1']")
    layers, heads = len(trace.layers), len(trace.heads)
    for layer, head in ((0, 0), (3, 2), (layers - 1, heads - 1)):
        tip = reader.point(x + width * ((head + 0.5) / heads - 0.5), y + height * ((layer + 0.5) / layers - 0.5))
        assert tip[:2] == [f"query head: {trace.heads[head]}", f"layer: {trace.layers[layer]}"], tip
        check_close(last_number(tip[2]), np.mean(masses[layer, head]), tip)
    # A click on a cell chooses its layer and head.
    [[x, y, width, height]] = reader.boxes("#external-mass svg g[id*='plot_1']")
    reader.browser.mouse(x + width * (1.5 / heads - 0.5), y + height * (4.5 / layers - 0.5), click=True)
    assert "layer=4&head=1" in reader.see("location.hash")
    reader.open()
    means = head_means(trace)
    for curve, path in enumerate(PATHS):
        by_step = means[path].over(lambda cell: cell[2:])
        points = reader.boxes(f"#similarity-over-steps svg g[id*='plot_{curve + 1}'] .point")
        assert len(points) >= len(by_step.terms)
        for i, step in enumerate(sorted(t for t, in by_step.terms)):
            if i % 4 == 0:
                name, at, value = reader.point(*points[i][:2])
                if name == ("A_out", "A_in")[curve]:  # where two points lie on one another, either is shown
                    assert at == f"step s of the pair s, s+1: {step}", (name, at)
                    check_close(last_number(value), by_step.mean((step,)), (name, step))
    # Every drawing with numbers shows some with keys, too; a resting pointer would move over them.
    reader.browser.mouse(1, 1)
    for name in reader.see("Object.keys(JSON.parse(document.getElementById('explore-plots').textContent))"):
        reader.browser.place(f"#{name} svg.drawing")
        reader.see(f"document.querySelector('#{name} svg.drawing').focus()")
        reader.browser.key("ArrowRight")
        assert re.search(r": -?[\d.]+(e-\d+)?$", reader.tip()[-1]), (name, reader.tip())
        reader.see("document.activeElement.blur()")
    bars = reader.boxes("#union-size svg g[id*='plot_1'] polygon")[-9:]
    rows = reader.see("[...document.querySelectorAll('#union-size tbody tr')].map((row) => row.cells[1].textContent)")
    counts = np.array([float(text.replace(",", "")) for text in rows])
    tallest = int(np.argmin([y - height / 2 for _, y, _, height in bars]))
    tip = reader.point(*bars[tallest][:2])
    check_close(last_number(tip[-1]), counts.max() / counts.sum(), tip, 1e-3)


def check_cells(reader, selector, wanted, caption):
    """The colours of a drawn matrix [x, y]: viridis from the caption's least value to 1."""
    least = float(re.search(r"One colour scale, from (\S+) to 1\.", caption).group(1))
    stops, pixels = reader.see(f"""(() => {{
      const canvas = document.querySelector({json.dumps(selector)});
      const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      return [JSON.parse(document.getElementById("explore-data").textContent).viridis, [...image.data]];
    }})()""")
    stops = np.array([[int(stop[i:i + 2], 16) for i in (1, 3, 5)] for stop in stops])
    place = (wanted - least) / (1 - least) * (len(stops) - 1)
    colours = np.stack([np.interp(place, range(len(stops)), stops[:, c]) for c in range(3)], -1)  # [x, y, 3]
    shown = np.array(pixels).reshape(*wanted.shape, 4)[..., :3]  # [y, x, 3]
    np.testing.assert_allclose(shown.swapaxes(0, 1), colours, atol=2.5)


def test_layer_and_head(reader, trace):
    reader.open()
    reader.choose("Layer", 5)
    reader.choose("Head", 3)
    means = head_means(trace)
    points = reader.boxes("#similarity-over-steps .explore svg path[fill^='#']")
    for curve, path in enumerate(PATHS):
        steps = sorted(t for layer, head, t in means[path].terms if (layer, head) == (5, 3))
        for i in range(0, len(steps), 5):
            # Two marks a legend row; the points of a curve stand before its legend.
            x, y = points[curve * (len(steps) + 1) + i][:2]
            name, at, value = reader.point(x, y)
            if name == ("A_out", "A_in")[curve]:
                assert at == f"step s of the pair s, s+1: {steps[i]}"
                check_close(last_number(value), means[path].mean((5, 3, steps[i])), (name, at), 2e-4)
    # The curve stands where its axis says: labels of the y axis give the scale.
    labels = reader.see("""[...document.querySelectorAll("#similarity-over-steps .explore svg text[text-anchor=end]")]
                           .map((one) => [Number(one.textContent), Number(one.getAttribute("y")) - 4])""")
    path = reader.see("""document.querySelector("#similarity-over-steps .explore svg path[stroke-width]")
                         .getAttribute("d")""")
    (v0, y0), (v1, y1) = labels[0], labels[-1]
    steps = sorted(t for layer, head, t in means[PATHS[0]].terms if (layer, head) == (5, 3))
    drawn = [v0 + (float(y) - y0) * (v1 - v0) / (y1 - y0) for y in re.findall(r",([\d.]+)", path)]
    np.testing.assert_allclose(drawn, [means[PATHS[0]].mean((5, 3, t)) for t in steps], atol=5e-4)
    reader.choose("Head", "")
    assert "Layer 5, all heads" in reader.see("document.querySelector('#similarity-over-steps .explore').innerText")
    reader.choose("Head", 3)
    caption = reader.see("document.querySelector('#token-similarity .explore').innerText")
    sequence, block = (int(v) for v in re.search(r"Layer 5, head 3, sequence (\d+), block (\d+)", caption).groups())
    rows = {int(trace.step["step"][row]): row for row in trace.blocks()[sequence, block]}
    maps = reader.boxes("#token-similarity .explore canvas")
    size = trace.block_length
    for i in (1, len(maps) - 1):
        x, y, width, height = maps[i]
        for a, b in ((0, 3), (9, 2), (size - 1, size - 1)):
            where, first, second, value = reader.point(x + width * ((a + 0.5) / size - 0.5),
                                                       y + height * ((b + 0.5) / size - 0.5))
            s, t, path = re.fullmatch(r"steps (\d+) → (\d+), (A_out|A_in)", where).groups()
            assert (first, second) == (f"token, step s: {a}", f"token, step s+1: {b}")
            path = PATHS[path == "A_in"]
            wanted = cosines(trace.at(path, rows[int(s)], 5)[3], trace.at(path, rows[int(t)], 5)[3])[a, b]
            check_close(last_number(value), wanted, (where, a, b), 3e-4)
    check_cells(reader, "#token-similarity .explore canvas", cosines(
        trace.at(PATHS[0], rows[1], 5)[3], trace.at(PATHS[0], rows[2], 5)[3]), caption)
    steps = reader.boxes("#step-similarity .explore canvas")
    x, y, width, height = steps[0]
    count = len(rows)
    tip = reader.point(x + width * (2.5 / count - 0.5), y + height * (4.5 / count - 0.5))
    assert tip[:3] == ["A_out", "step: 3", "step: 5"], tip
    wanted = np.mean([cosines(trace.at(PATHS[0], rows[3], 5)[3], trace.at(PATHS[0], rows[5], 5)[3])[i, i]
                      for i in range(size)])
    check_close(last_number(tip[3]), wanted, tip, 3e-4)
    reader.choose("Layer", "")
    reader.choose("Head", "")
    assert reader.see("document.querySelectorAll('.swapped').length") == 0


def test_attention(reader, trace, shown):
    when = decided_at(trace, *shown)
    file = trace.file
    shift = int(file.attrs.get("logit_shift", 0))
    for step, layer, head in ((3, 3, 5), (4, 0, 2), (7, 5, 0)):
        reader.open(f"#sequence={shown[0]}&block={shown[1]}&step={step}&layer={layer}&head={head}")
        title = reader.see("document.querySelector('#explore-attention p').innerText")
        query, position = (int(v) for v in re.search(
            rf"layer {layer}, head {head}, at step {step} of block {shown[1]}\. The query at position (\d+) "
            r"decides .* at position (\d+)\.", title).groups())
        assert when[position] == step and query == position - shift
        row = next(r for r in trace.blocks()[shown] if trace.step["step"][r] == step)
        places, weights = expected(file, row, layer, causal=False)
        wanted = dict(zip(places, weights[head, query - trace.step["block_start"][row]]))
        keys = reader.see("""[...document.querySelectorAll("#explore-attention p.looked-at bdi")].map((key) =>
          [Number(key.dataset.position), Number(key.dataset.weight), key.className, key.dataset.tip])""")
        assert [key[0] for key in keys] == sorted(wanted), "keys"
        for place, weight, css, tip in keys:
            assert abs(weight - wanted[place]) < 3e-4 * np.sqrt(wanted[place]) + 1e-7, (place, weight, wanted[place])
            assert ("query" in css) == (place == query)
            shade = np.sqrt(wanted[place] / max(wanted.values())) * 10
            assert abs(int(re.match(r"w(\d)", css).group(1)) + 0.5 - shade) < 0.6, (place, css, shade)
        strongest = max(keys, key=lambda key: key[1])
        x, y = reader.browser.place(f"#explore-attention bdi[data-position='{strongest[0]}']")
        assert reader.point(x, y) == [f"position {strongest[0]}, weight {strongest[1]:.4f}"]
    # A token of the trajectory leads to the step and the query that decided it.
    position, step = next((p, t) for p, t in sorted(when.items()) if t == 5)
    reader.browser.click(f"#explore-trajectory td.token button[data-position='{position}']")
    assert f"step={step}" in reader.see("location.hash") and f"position={position}" in reader.see("location.hash")
    # The buttons choose a head.
    reader.browser.click("#explore-attention button")
    layer, head = reader.see("document.querySelector('#explore-attention button').textContent").split(".")
    assert f"layer={layer}&head={head}" in reader.see("location.hash")


def test_many_at_a_step(reader, folder, model):
    """Each of the tokens that one step decides has its query."""
    run("capture", model, "--prompts", model / "demo.jsonl", "--limit", 1, "--record", "full", "-q",
        "--strategy", "low_confidence_dynamic,threshold=0.5", "-o", folder / "many.h5")
    run("report", folder / "many.h5", "-o", folder / "many.html", "-q")
    data = data_of(folder / "many.html")
    block, step = next((block, step) for block in data["attention"]["blocks"] for step in block["steps"]
                       if len(step["queries"]) > 2)
    link = f"#sequence={block['sequence']}&block={block['block']}&step={step['step']}"
    reader.open(link, page=folder / "many.html")
    for query in step["queries"]:
        reader.browser.click(f"#explore-trajectory td.token button[data-position='{query['position']}']")
        assert f"at position {query['position']}." in reader.see(
            "document.querySelector('#explore-attention p').innerText")
    reader.open(f"{link}&position={step['queries'][1]['position']}", page=folder / "many.html")
    assert f"at position {step['queries'][1]['position']}." in reader.see(
        "document.querySelector('#explore-attention p').innerText")


def changes_of(trace, row):
    """{position: token} that a row put there or took back (None), and what kind each change is."""
    frames = trace.file["frames"]
    put, gone = (slice(int(frames[f"{name}_end"][row - 1]) if row else 0, int(frames[f"{name}_end"][row]))
                 if f"{name}_end" in frames else slice(0, 0) for name in ("delta", "revoke"))
    put = dict(zip(frames["position"][put].tolist(), frames["token"][put].tolist()))
    gone = frames["revoke_position"][gone].tolist() if gone.stop else []
    return put | dict.fromkeys(gone)  # what is taken back gets the mask's id


def cells_of(changes, step, last):
    """The cells of a row of the page's table at a step: {step: kind of change} of its position."""
    css = {"decided": "token", "edited": "token edited", "taken back": "gone"}
    cells, held = [], False
    for column in range(1, step + 1):
        kind = changes.get(column)
        cells.append(css[kind] if kind else "settled" if held else "mask")
        held = held if kind is None else kind != "taken back"
    return cells + [""] * (last - step)


def test_changed_tokens(reader, folder):
    """Step by step, the page's text is the frame's, where steps edit tokens or take them back."""
    for name, model, flags, kinds in (
            ("edited", "models/needle", ("--strategy", "joint_threshold,threshold=0.3,editing_threshold=0.2",
                                         "--denoising-steps", 4), {"edited"}),
            ("taken back", "models/needle-bidirectional", ("--strategy", "wino,threshold_back=1"), {"taken back"})):
        path = folder / "changed.h5"
        run("capture", ROOT.parent / model, "--prompts", ROOT.parent / "models/needle/demo.jsonl", "--limit", 3, "-q",
            "--gen-length", 32, "--record", "trajectory", *flags, "-o", path, "--force")
        run("report", path, "-o", folder / "changed.html", "-q", "--force")
        trace = Trace(str(path))
        ends, pieces = (trace.file[f"tokenizer/piece_{n}"][:] for n in ("offset", "bytes"))
        text = lambda token: pieces[ends[token]:ends[token + 1]].tobytes().decode("utf-8", "replace").replace(
            " ", "\u2423").replace("\n", "\u21b5")
        seen = set()
        for (sequence, block), rows in trace.blocks().items():
            prompt, tokens, history = int(trace.prompt_length[sequence]), {}, {}
            last = int(trace.step["step"][rows[-1]])
            for row in rows:
                changes, step = changes_of(trace, row), int(trace.step["step"][row])
                counts = {"decided": 0, "edited": 0, "taken back": 0}
                for position, token in changes.items():
                    before = tokens.get(position)
                    kind = "taken back" if token is None else "decided" if before is None else "edited"
                    counts[kind] += 1
                    history.setdefault(prompt + position, {})[step] = kind
                    tokens[position] = token
                seen |= {kind for kind, count in counts.items() if count}
                if not counts["edited"] and not counts["taken back"] and step % 3:
                    continue  # test_steps looks at such steps
                reader.open(f"#sequence={sequence}&block={block}&step={step}", page=folder / "changed.html")
                note = reader.see("document.querySelector('#explore-trajectory p.note').textContent")
                told = {kind: int(count) for count, kind in re.findall(r"(\d+) (decided|edited|taken back)", note)}
                assert {kind: told.get(kind, 0) for kind in counts} == counts, (name, block, step, note, counts)
                shown = dict(reader.see("""[...document.querySelectorAll("#explore-trajectory p.text [data-position]")]
                    .map((chip) => [Number(chip.dataset.position), chip.textContent])"""))
                wanted = {prompt + p: text(t) for p, t in tokens.items() if t is not None}
                for label, cells in reader.see("""[...document.querySelectorAll("#explore-trajectory tbody tr")].map(
                        (row) => [row.cells[0].textContent, [...row.cells].slice(1, -1).flatMap((cell) => Array(
                        cell.colSpan).fill(cell.querySelector(".gone") ? "gone" : cell.className))])"""):
                    if label.isdigit() and int(label) in history:
                        assert cells == cells_of(history[int(label)], step, last), (name, block, step, label, cells)
                runs = {p for p, shape in shown.items() if " \u00d7 " in shape}
                for place, token in shown.items():
                    if place - prompt in tokens and place not in runs:
                        assert token == wanted[place], (name, sequence, block, step, place, token, wanted)
                assert runs or not set(wanted) - set(shown), (name, step, set(wanted) - set(shown))
        assert kinds <= seen, (name, seen)


def test_sorting(reader):
    reader.open()
    column = """[...document.querySelectorAll("#external-mass tbody tr")].map((row) => row.cells[2].textContent)"""
    reader.see("document.querySelector('#external-mass details').open = true")
    original = reader.see(column)
    button = "#external-mass thead th:nth-child(3) button"
    values = sorted(original, key=float)
    assert original not in (values, values[::-1])
    for order, wanted in (("ascending", values), ("descending", values[::-1]), (None, original)):
        reader.browser.click(button)
        assert reader.see(column) == wanted, order
        assert reader.see(f"document.querySelector({json.dumps(button)}).parentNode.getAttribute('aria-sort')") == order
    reader.browser.key("Enter")  # the button still has the focus
    assert reader.see(column) == values


def test_ends(reader, folder):
    """Tokens that end the text, one after the other, are one mark. Data isn't part of the script's digest."""
    source = reader.page.read_text(encoding="utf-8")
    data = data_of(reader.page)
    block = next(b for b in data["blocks"] if b["sequence"] == data["shown"]["sequence"]
                 and b["block"] == data["shown"]["block"])
    block["tokens"][-5:], data["ends"] = [len(data["texts"])] * 5, [len(data["texts"])]
    data["texts"].append("<|endoftext|></script><b>")
    changed = re.sub(r'(id="explore-data">).*?(</script>)', lambda m: m.group(1) + json.dumps(data).replace(
        "<", "\\u003c") + m.group(2), source, count=1, flags=re.DOTALL)
    page = folder / "ends.html"
    page.write_text(changed, encoding="utf-8")
    reader.open(page=page)
    first, last = block["positions"][-5], block["positions"][-1]
    marks = reader.see("""[...document.querySelectorAll("#explore-trajectory tbody tr")].map((row) =>
                          [row.cells[0].textContent, row.querySelector(".token").textContent])""")
    assert len(marks) == len(block["positions"]) - 4
    assert marks[-1] == [f"{first}–{last}", "<|endoftext|></script><b> × 5"], marks[-1]
    steps = sorted(block["decided"][-5:])  # a run counts what is decided by now
    assert steps[1] < steps[2]
    reader.open(f"#sequence={block['sequence']}&block={block['block']}&step={steps[1]}", page=page)
    assert reader.see("[...document.querySelectorAll('#explore-trajectory .token')].at(-1).textContent") == \
        "<|endoftext|></script><b> × 2 of 5"


def data_of(page):
    return json.loads(re.search(r'id="explore-data">(.*?)</script>', page.read_text("utf-8"), re.DOTALL).group(1))


def plain(source):
    """The page without the script, its data and its style."""
    source = re.sub(r"<script.*?</script>\n", "", source, flags=re.DOTALL)
    source, count = re.subn(r"\n\[hidden\]\{.*?(?=</style>)", "", source, flags=re.DOTALL)
    assert count == 1
    return source


def test_without_scripts_and_in_print(reader, folder):
    browser = reader.browser
    page = folder / "plain.html"
    page.write_text(plain(reader.page.read_text(encoding="utf-8")), encoding="utf-8")
    def seen(path, fragment="", scripts=True):
        browser.open(path.as_uri() + fragment, scripts=scripts)
        browser.screenshot(folder / "seen.png", whole=True)
        return browser.evaluate("document.body.innerText"), (folder / "seen.png").read_bytes(), \
            browser.evaluate("document.documentElement.scrollHeight")
    static = seen(page)
    assert "Figure 1." in static[0] and "confidence" in static[0]
    assert seen(reader.page, scripts=False) == static
    browser.media("print")
    printed = seen(page)
    state = "#sequence=0&step=2&layer=3&head=2"
    assert seen(reader.page, state) == printed, "print differs with a script"
    assert seen(reader.page, scripts=False) == printed
    assert browser.evaluate("document.documentElement.className") == ""
    browser.media()
    text = seen(reader.page, state)[0]
    assert text != static[0] and "Link to this view" in text


def test_hostile_title(reader, folder, trace):
    page = folder / "hostile.html"
    run("report", trace.path, "-o", page, "-q",
        "--title", "</title><script>window.evil=1</script><img src=x onerror=evil=1>")
    reader.open(page=page)
    assert reader.see("window.evil === undefined && document.querySelectorAll('img').length === 0")
    # A script that somebody puts into the page doesn't run.
    page.write_text(page.read_text(encoding="utf-8").replace("<h1>", "<script>window.evil=1</script><h1>", 1))
    reader.browser.open(page)
    assert reader.see("window.evil === undefined") and any("Content Security Policy" in m or "violates" in m
                                                           for m in reader.browser.messages)
    reader.browser.messages.clear()


def main():
    skip_without_browser()
    with tempfile.TemporaryDirectory() as name, Browser() as browser:
        folder = pathlib.Path(name)
        model = pathlib.Path(sys.argv[1])
        run("capture", model, "--prompts", model / "demo.jsonl", "--limit", 4, "--record", "full",
            "-o", folder / "run.h5", "-q")
        page = folder / "run.html"
        run("report", folder / "run.h5", "-o", page, "-q")
        assert page.stat().st_size < 3e6, page.stat().st_size
        trace = Trace(str(folder / "run.h5"))
        reader = Reader(browser, page)
        shown = data_of(page)["shown"]
        shown = shown["sequence"], shown["block"]
        tests = ((test_steps, (trace, shown)), (test_play, (shown,)), (test_link, (trace, shown)),
                 (test_hover, (trace,)), (test_layer_and_head, (trace,)), (test_attention, (trace, shown)),
                 (test_many_at_a_step, (folder, model)), (test_changed_tokens, (folder,)), (test_sorting, ()),
                 (test_ends, (folder,)),
                 (test_without_scripts_and_in_print, (folder,)), (test_hostile_title, (folder, trace)))
        for test, arguments in tests:
            test(reader, *arguments)
            loaded = [url for url in browser.requests if not url.startswith(folder.as_uri()) and url != "about:blank"]
            assert not loaded and not browser.messages, (loaded, browser.messages)
            print(f"{test.__name__}: ok", flush=True)


if __name__ == "__main__":
    main()
