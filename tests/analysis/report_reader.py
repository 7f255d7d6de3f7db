"""What somebody sees of a report's page in Chromium, for check_report_browser.py."""

import json
import re


class Reader:
    """What somebody sees of the page."""

    def __init__(self, browser, page):
        self.browser, self.page = browser, page

    def open(self, fragment="", page=None):
        self.browser.open((page or self.page).as_uri() + fragment)
        assert not self.browser.messages, self.browser.messages

    def see(self, script):
        return self.browser.evaluate(script)

    def step(self):
        now, last = re.fullmatch(r"step (\d+) of (\d+)", self.see(
            "document.querySelector('.bar output').textContent")).groups()
        return int(now), int(last)

    def decided(self):
        """Positions whose tokens are shown."""
        return sorted(self.see("""[...document.querySelectorAll("#explore-trajectory td.token [data-position]")]
                                  .map((chip) => Number(chip.dataset.position))"""))

    def choose(self, name, value):
        self.see(f"""(() => {{
          const select = document.querySelector(".bar select[aria-label='{name}']");
          select.value = "{value}";
          if (select.value !== "{value}") throw Error("no such choice");
          select.dispatchEvent(new Event("change", {{bubbles: true}}));
        }})()""")

    def tip(self):
        """The tool tip's lines."""
        self.browser.wait("!document.querySelector('.tip').hidden")
        return self.see("document.querySelector('.tip').textContent").split("\n")

    def point(self, x, y):
        self.browser.mouse(x, y)
        self.browser.mouse(x + 0.4, y)
        return self.tip()

    def boxes(self, selector):
        """Middles and sizes of elements, the first of which is scrolled into the middle of the window."""
        self.browser.place(selector)
        return self.see(f"""[...document.querySelectorAll({json.dumps(selector)})].map((one) => {{
          const box = one.getBoundingClientRect();
          return [box.left + box.width / 2, box.top + box.height / 2, box.width, box.height];
        }})""")


def last_number(line):
    return float(line.rsplit(": ", 1)[1])


def decided_at(trace, sequence, block):
    """{position: step} of a block, from the patches of its rows."""
    prompt = int(trace.prompt_length[sequence])
    return {prompt + int(position): int(trace.step["step"][row])
            for row in trace.blocks()[sequence, block] for position in trace.delta(row)[0]}


def check_close(told, wanted, what, within=6e-5):
    assert abs(told - wanted) <= within, (what, told, wanted)
