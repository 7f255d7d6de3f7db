// The script of the report's page: steps through the decoding, shows numbers under the pointer, and
// redraws figures for a chosen layer and head. It only adds to the page: without it, and in print,
// the page shows its static figures. Text from a trace becomes text nodes, never markup. It is one
// file of over 400 lines because a page has one script, whose digest the page names.
"use strict";
(() => {
const data = JSON.parse(document.getElementById("explore-data").textContent);
const plots = JSON.parse(document.getElementById("explore-plots").textContent);
const byId = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

/** A new element. Attributes that are functions listen; children are nodes or text. */
function make(name, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "circle", "line", "text", "title"].includes(name);
  const node = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value !== null && value !== false) node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

/** Four decimals, or three digits of small numbers, as the static page writes them. */
function number(value, decimals = 4) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (Number.isInteger(value)) return String(value);
  const small = value !== 0 && Math.abs(value) < 10 ** (1 - decimals);
  return small ? value.toExponential(2) : value.toFixed(decimals);
}

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const VALUE_OF = Object.fromEntries([...DIGITS].map((digit, i) => [digit, i]));
/** Numbers from 0 to 1, two letters each; NaN for the last code. */
function shares(codes) {
  const values = new Array(codes.length / 2);
  for (let i = 0; i < values.length; ++i) {
    const code = VALUE_OF[codes[2 * i]] * 64 + VALUE_OF[codes[2 * i + 1]];
    values[i] = code === 4095 ? NaN : code / 4094;
  }
  return values;
}
const decoded = (coded) =>
  shares(coded.codes).map((share) => coded.least + share * (coded.greatest - coded.least));

// ---------------------------------------------------------------------------------- the state

const state = {...data.shown, step: null, layer: null, head: data.shown.head ?? null, position: null};
const KEYS = ["sequence", "block", "step", "layer", "head", "position"];

const blockNow = () => data.blocks.find(
  (block) => block.sequence === state.sequence && block.block === state.block);
const slotOf = (list, value) => value === null ? list.length : list.indexOf(value);

/** Puts impossible values right: a link may come from another page. */
function settle() {
  if (!data.sequences.some((one) => one.sequence === state.sequence)) {
    state.sequence = data.shown.sequence;
  }
  const blocks = data.blocks.filter((block) => block.sequence === state.sequence);
  if (!blocks.some((block) => block.block === state.block)) state.block = blocks[0].block;
  const steps = blockNow().steps;
  state.step = state.step === null ? steps : Math.min(Math.max(0, state.step), steps);
  if (!data.layers.includes(state.layer)) state.layer = null;
  if (!data.heads.includes(state.head)) state.head = null;
}

function readLink() {
  if (!location.hash.includes("=")) return false;
  for (const [key, value] of new URLSearchParams(location.hash.slice(1))) {
    if (KEYS.includes(key)) state[key] = /^\d+$/.test(value) ? Number(value) : null;
  }
  settle();
  return true;
}

const link = () => "#" + KEYS.filter((key) => state[key] !== null)
  .map((key) => `${key}=${state[key]}`).join("&");

function change(changes) {
  if ("sequence" in changes || "block" in changes) {
    Object.assign(state, {step: null, position: null});
  } else if ("step" in changes) {
    state.position = null;
  }
  Object.assign(state, changes);
  settle();
  try {
    history.replaceState(null, "", link());
  } catch {
    // A frame without an address of its own, as in a notebook.
  }
  draw();
}

// ------------------------------------------------------------------------------- the control bar

let timer = null;
function play(on) {
  clearInterval(timer);
  timer = null;
  if (on) {
    if (state.step >= blockNow().steps) change({step: 0});
    timer = setInterval(() => {
      if (state.step >= blockNow().steps) play(false);
      else change({step: state.step + 1});
    }, 700);
  }
  controls.play.textContent = on ? "Pause" : "Play";
}

const stepBy = (count) => change({step: state.step + count});
function blockBy(count) {
  const at = data.blocks.indexOf(blockNow()) + count;
  if (at < 0 || at >= data.blocks.length) return;
  change({sequence: data.blocks[at].sequence, block: data.blocks[at].block});
}

const chooser = (key, title) => make("select", {
  "aria-label": title,
  change: (event) => {
    const value = event.target.value === "" ? null : Number(event.target.value);
    change(key === "sequence" ? {sequence: value, block: null} : {[key]: value});
  }});
const button = (text, title, click) => make("button", {type: "button", title, click}, text);
const controls = {
  sequence: chooser("sequence", "Sequence"), block: chooser("block", "Block"),
  layer: chooser("layer", "Layer"), head: chooser("head", "Head"),
  play: button("Play", "Play the steps (p)", () => play(timer === null)),
  step: make("input", {type: "range", min: 0, "aria-label": "Step",
                       input: (event) => change({step: Number(event.target.value)})}),
  told: make("output", {"aria-live": "off"}), link: make("a", {href: "#"}, "Link to this view"),
};

function fill(select, options, chosen) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.dataset.options = wanted;
    select.replaceChildren(...options.map(([value, text]) => make("option", {value}, text)));
  }
  select.value = chosen === null ? "" : chosen;
}

function drawBar() {
  const block = blockNow();
  fill(controls.sequence, data.sequences.map((one) => [
    one.sequence, one.name ? `${one.sequence}: ${one.name.slice(0, 40)}` : `${one.sequence}`]),
       state.sequence);
  fill(controls.block, data.blocks.filter((one) => one.sequence === state.sequence)
    .map((one) => [one.block, `${one.block}`]), state.block);
  fill(controls.layer, [["", "all"], ...data.layers.map((one) => [one, `${one}`])], state.layer);
  fill(controls.head, [["", "all"], ...data.heads.map((one) => [one, `${one}`])], state.head);
  controls.step.max = block.steps;
  controls.step.value = state.step;
  controls.told.textContent = `step ${state.step} of ${block.steps}`;
  controls.link.href = link();
}

const labelled = (text, control) => make("label", {}, text, control);
const bar = make(
  "div", {class: "bar", role: "toolbar", "aria-label": "Explore this page"},
  labelled("Sequence", controls.sequence), labelled("Block", controls.block),
  make("span", {class: "steps"}, button("◀", "One step back (←)", () => stepBy(-1)), controls.play,
       button("▶", "One step forward (→)", () => stepBy(1)), controls.step, controls.told),
  labelled("Layer", controls.layer), labelled("Head", controls.head), controls.link);

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, select, textarea, svg, canvas");
  if (typing || event.ctrlKey || event.altKey || event.metaKey) return;
  const acts = {ArrowLeft: () => event.shiftKey ? blockBy(-1) : stepBy(-1),
                ArrowRight: () => event.shiftKey ? blockBy(1) : stepBy(1),
                p: () => play(timer === null)};
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
});

// ------------------------------------------------------------------------------------- tool tips

const tip = make("div", {class: "tip", role: "status", hidden: true});
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const {width, height} = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 16 + height > innerHeight ? y - height - 10 : y + 16}px`;
}
const hideTip = () => { tip.hidden = true; };

for (const kind of ["pointerover", "focusin"]) {
  document.addEventListener(kind, (event) => {
    const at = event.target.closest?.("[data-tip]");
    if (!at) return;
    const box = at.getBoundingClientRect();
    showTip(at.dataset.tip, box.left, box.bottom - 12);
  });
}
for (const kind of ["pointerout", "focusout"]) {
  document.addEventListener(kind, (event) => event.target.closest?.("[data-tip]") && hideTip());
}
document.addEventListener("keydown", (event) => event.key === "Escape" && hideTip());

/** Marks of a drawing under the pointer or, with arrow keys, one after the other. A mark has x, y,
    text and, for a cell, its half width and height in the drawing's own units. */
function watch(svg, marks, click) {
  if (marks.length === 0) return;
  const ring = make("path", {class: "mark"});
  svg.append(ring);
  let current = -1;
  const show = (index) => {
    current = index;
    ring.setAttribute("d", "");
    if (index < 0) return hideTip();
    const mark = marks[index];
    const [w, h] = [mark.w ?? 6, mark.h ?? 6];
    ring.setAttribute("d", `M${mark.x - w},${mark.y - h}h${2 * w}v${2 * h}h${-2 * w}z`);
    const place = new DOMPoint(mark.x, mark.y).matrixTransform(svg.getScreenCTM());
    showTip(mark.text, place.x, place.y);
  };
  svg.setAttribute("tabindex", "0");
  const leave = () => show(-1);
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("blur", leave);
  svg.addEventListener("pointermove", (event) => {
    const at = new DOMPoint(event.clientX, event.clientY)
      .matrixTransform(svg.getScreenCTM().inverse());
    let best = -1;
    let least = 14;
    marks.forEach((mark, i) => {
      const [dx, dy] = [Math.abs(mark.x - at.x), Math.abs(mark.y - at.y)];
      const inside = mark.w !== undefined && dx <= mark.w && dy <= mark.h;
      const distance = inside ? 0 : mark.w === undefined ? Math.hypot(dx, dy) : Infinity;
      if (distance < least) [best, least] = [i, distance];
    });
    show(best);
  });
  svg.addEventListener("keydown", (event) => {
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1}[event.key];
    if (by) {
      event.preventDefault();
      show((current + by + marks.length) % marks.length);
    } else if (event.key === "Enter" && current >= 0 && click) {
      click(marks[current]);
    }
  });
  if (click) svg.addEventListener("click", () => current >= 0 && click(marks[current]));
}

/** The marks of one plot of a static drawing: its points in the order of their data. */
function marksOf(plot, group) {
  const named = (names, value) => names?.[Math.round(value)] ?? number(value, 6).replace(/\.?0+$/, "");
  const told = (x, y, value) => [
    [plot.title, plot.name].filter(Boolean).join(", "),
    `${plot.x || "x"}: ${named(plot.x_names, x)}`,
    value === undefined ? `${plot.y || "y"}: ${number(y)}`
                        : `${plot.y || "y"}: ${named(plot.y_names, y)}`,
    value === undefined ? "" : `${plot.value || "value"}: ${number(value)}`,
  ].filter(Boolean).join("\n");
  if (plot.kind === "line") {
    const drawn = [...group.querySelectorAll(".point")];
    if (drawn.length < plot.points.length) return [];  // some are outside the axes
    return plot.points.map(([x, y], i) => {
      const at = /translate\(([-\d.]+),([-\d.]+)\)/.exec(drawn[i].getAttribute("transform"));
      return {x: Number(at[1]), y: Number(at[2]), text: told(x, y)};
    });
  }
  if (plot.kind === "bars") {
    const drawn = [...group.querySelectorAll("polygon")].slice(-plot.points.length);
    if (drawn.length < plot.points.length) return [];
    return plot.points.map(([x, y], i) => {
      const box = drawn[i].getBBox();
      return {x: box.x + box.width / 2, y: box.y + box.height / 2, w: box.width / 2,
              h: Math.max(4, box.height / 2), text: told(Math.round(x), y)};
    });
  }
  // Cells stand on a grid, so the drawing's box and the points' give the place of each.
  const paths = [...group.querySelectorAll("polygon, path")].filter((one) => one.getBBox().width > 0);
  if (paths.length === 0 || plot.points.length === 0) return [];
  const boxes = paths.map((one) => one.getBBox());
  const left = Math.min(...boxes.map((box) => box.x));
  const top = Math.min(...boxes.map((box) => box.y));
  const right = Math.max(...boxes.map((box) => box.x + box.width));
  const bottom = Math.max(...boxes.map((box) => box.y + box.height));
  const [xs, ys] = [0, 1].map((i) => plot.points.map((point) => point[i]));
  const [x0, y0] = [Math.min(...xs), Math.min(...ys)];
  const w = (right - left) / (Math.max(...xs) - x0 + 1) / 2;
  const h = (bottom - top) / (Math.max(...ys) - y0 + 1) / 2;
  return plot.points.map(([x, y, value]) => ({
    x: left + (2 * (x - x0) + 1) * w, y: top + (2 * (y - y0) + 1) * h, w, h, slots: [x, y],
    text: told(x, y, value)}));
}

/** A map of layers and query heads: a click chooses both, and a dashed frame shows the chosen ones. */
const isHeadMap = (list) => list[0]?.kind === "cells" && list[0].x === "query head" &&
  list[0].y === "layer" && list[0].x_names && list[0].y_names;
const headMaps = [];
function frameChosen() {
  for (const {svg, plot, group} of headMaps) {
    svg.querySelector(".chosen")?.remove();
    if (state.layer === null && state.head === null) continue;
    const cells = marksOf(plot, group).filter(({slots: [x, y]}) =>
      (state.layer === null || Number(plot.y_names[y]) === state.layer) &&
      (state.head === null || Number(plot.x_names[x]) === state.head));
    svg.append(make("path", {class: "chosen", d: cells.map(({x, y, w, h}) =>
      `M${x - w},${y - h}h${2 * w}v${2 * h}h${-2 * w}z`).join("")}));
  }
}

function watchFigures() {
  for (const [name, list] of Object.entries(plots)) {
    const svg = byId(name)?.querySelector(":scope > svg.drawing");
    if (!svg) continue;
    const groups = [...svg.querySelectorAll("g[id*='gnuplot_plot_']")];
    const shown = list.map((plot, i) => [plot, groups[i]]).filter(([plot, g]) => plot.kind && g);
    let marks = null;
    const prepare = () => {
      if (marks !== null || svg.getBoundingClientRect().width === 0) return;
      marks = shown.flatMap(([plot, group]) => marksOf(plot, group));
      watch(svg, marks, isHeadMap(list) && ((mark) => change({
        layer: Number(list[0].y_names[mark.slots[1]]), head: Number(list[0].x_names[mark.slots[0]])})));
    };
    if (isHeadMap(list)) headMaps.push({svg, plot: list[0], group: groups[0]});
    // Boxes of marks are measured when they are first needed, not when the page opens.
    svg.addEventListener("pointerenter", prepare, {once: true});
    svg.addEventListener("focus", prepare, {once: true});
    svg.setAttribute("tabindex", "0");
  }
}

// -------------------------------------------------------------------------------- the trajectory

const ends = new Set(data.ends);
const confidenceClass = (confidence) =>
  confidence === null ? "cx" : `c${Math.min(9, Math.max(0, Math.floor(confidence * 10)))}`;

// What a step does to a token, in the order of their numbers on the page.
const KINDS = ["decided", "edited", "taken back", "moved"];

/** Index of the last of these events up to a step; -1: none yet. */
const lastUpTo = (events, step) => events.findLastIndex((event) => event.step <= step);

/** What steps did at a position, the earliest first. Token -1: undecided again; step 0: known before. */
function eventsOf(block, i) {
  const all = block.events[i];
  if (all) return all.map(([step, token, confidence, kind]) => ({step, token, confidence, kind: KINDS[kind]}));
  return block.decided[i] < 0 ? []
    : [{step: block.decided[i], token: block.tokens[i], confidence: block.confidence[i], kind: "decided"}];
}

/** The text's token at a position after a step; -1: undecided. */
function tokenAt(block, i, step) {
  const events = eventsOf(block, i);
  return events[lastUpTo(events, step)]?.token ?? -1;
}

/** Rows of a block: positions, and runs of tokens that end the text as one. */
function rowsOf(block) {
  const rows = [];
  block.positions.forEach((position, i) => {
    const events = eventsOf(block, i);
    const step = block.decided[i];
    const row = {first: position, last: position, count: 1, events, step, steps: [step],
                 ends: events.length === 1 && step > 0 && ends.has(block.tokens[i])};
    const before = rows[rows.length - 1];
    if (row.ends && before?.ends) {
      before.last = position;
      before.count += 1;
      before.step = Math.min(before.step, step);
      before.steps.push(step);
      before.events = [{...before.events[0], step: before.step}];
    } else {
      rows.push(row);
    }
  });
  return rows;
}

/** The token that an event put there; a cross where it took one back. */
function chip(row, at) {
  const event = row.events[at];
  const text = (token) => token < 0 ? "undecided" : `“${data.texts[token]}”`;
  const before = at > 0 ? text(row.events[at - 1].token) : "undecided";
  const place = `position ${row.first}, step ${event.step}`;
  if (event.token < 0) {
    return make("bdi", {class: "gone", "data-tip": `${place}: ${before} ${event.kind}`}, "×");
  }
  const known = event.step === 0 || row.count > 1;
  const told = row.count > 1
    ? `positions ${row.first} to ${row.last}, steps ${row.step} to ${Math.max(...row.steps)}`
    : event.step === 0 ? `position ${row.first}, known before step 1`
    : `${place}, confidence ${number(event.confidence, 3)}` +
      (event.kind === "decided" ? "" : `, ${event.kind}, was ${before}`);
  const decided = row.steps.filter((step) => step <= state.step).length;
  const shown = data.texts[event.token] + (row.count === 1 ? "" : decided === row.count
    ? ` × ${row.count}` : ` × ${decided} of ${row.count}`);
  const attributes = {class: known ? "known" : confidenceClass(event.confidence), "data-tip": told,
                      "data-position": row.first};
  const looked = attentionOf(event.step)?.queries.some((query) => query.position === row.first);
  if (!looked) return make("bdi", attributes, shown);
  return make("button", {...attributes, type: "button", click: () => {
    const position = row.first;
    change({step: event.step});
    change({position});
  }}, shown);
}

/** The cells of a row up to the chosen step, and empty ones after it. */
function cellsOf(row, steps) {
  const cells = [];
  let column = 0;
  let held = -1;
  const fillTo = (end, kind) => {
    if (end > column) cells.push(make("td", {class: kind, colspan: end - column}));
    column = Math.max(column, end);
  };
  row.events.forEach((event, at) => {
    if (event.step > state.step) return;
    const changed = event.step === 0 && row.events[at + 1]?.step === 1 && state.step > 0;
    if (!changed) {  // else its change takes the first column
      fillTo(event.step - 1, held < 0 ? "mask" : "settled");
      const kind = event.kind === "decided" || event.token < 0 ? "" : ` ${event.kind}`;
      cells.push(make("td", {class: `token${kind}`}, chip(row, at)));
      column += 1;
    }
    held = event.token;
  });
  fillTo(state.step, held < 0 ? "mask" : "settled");
  fillTo(steps, "");
  return cells;
}

const hasChanges = data.blocks.some((block) =>
  Object.values(block.events).some((list) => list.some((event) => event[3] > 0)));

/** The static legend, with what only other blocks than the static ones have. */
function legend() {
  const copy = byId("trajectory").querySelector(".legend").cloneNode(true);
  if (!copy.querySelector(".edited") && hasChanges) {
    copy.append(make("span", {class: "edited"}, "edited"),
                make("span", {class: "moved"}, "moved by an insertion or deletion"),
                make("span", {class: "gone"}, "× taken back"));
  }
  return copy;
}

/** "3 decided, 1 edited": what the chosen step did in the block. */
function stepText(block) {
  const events = block.positions.flatMap((_, i) => eventsOf(block, i)).filter((one) => one.step === state.step);
  const counts = KINDS.map((kind) => [kind, events.filter((one) => one.kind === kind)]);
  const sure = counts[0][1].map((one) => one.confidence).filter((one) => one !== null);
  const mean = sure.length ? sure.reduce((a, b) => a + b) / sure.length : null;
  return counts.filter(([kind, list]) => kind === "decided" || list.length)
    .map(([kind, list]) => `${list.length} ${kind}`).join(", ") +
    (mean === null ? "" : `, mean confidence ${number(mean, 3)}`);
}

const trajectory = make("div", {class: "explore", id: "explore-trajectory"});
function drawTrajectory() {
  const block = blockNow();
  const rows = rowsOf(block);
  const head = make("tr", {}, make("th", {scope: "col"}, "position"));
  for (let step = 1; step <= block.steps; ++step) {
    head.append(make("th", {scope: "col", class: step === state.step ? "now" : null}, `${step}`));
  }
  head.append(make("th", {class: "room"}));
  const body = rows.map((row) => make(
    "tr", {}, make("th", {scope: "row"}, row.count > 1 ? `${row.first}–${row.last}` : `${row.first}`),
    ...cellsOf(row, block.steps), make("td", {class: "room"})));
  const facts = data.sequences.find((one) => one.sequence === state.sequence).facts;
  const undecided = block.positions.filter((_, i) => tokenAt(block, i, state.step) < 0).length;
  const text = make("p", {class: "text"}, ...rows.map((row) => {
    const at = lastUpTo(row.events, state.step);
    const event = row.events[at];
    const node = event && event.token >= 0 ? chip(row, at) : make("bdi", {class: "dots", "data-tip":
      `position ${row.first}${row.count > 1 ? ` to ${row.last}` : ""}: undecided`}, "·");
    if (state.step > 0 && (event?.step === state.step || row.steps.includes(state.step))) {
      node.classList.add(event?.kind === "edited" || event?.kind === "moved" ? event.kind : "new");
    }
    return node;
  }));
  trajectory.replaceChildren(
    make("dl", {class: "facts"}, ...facts.flatMap(([name, value]) => [
      make("dt", {}, name), make("dd", {}, make("bdi", {}, value))])),
    legend(), text,
    make("p", {class: "note", "aria-live": "polite"}, state.step === 0
      ? `Before step 1: ${undecided} undecided.`
      : `Step ${state.step}: ${stepText(block)}; ${undecided} undecided left.`),
    make("div", {class: "scroll"}, make(
      "table", {class: "trajectory"}, make("caption", {}, make("span", {}, `Block ${block.block} of sequence ${
        block.sequence}: positions ${block.positions[0]}–${block.positions.at(-1)}, ${block.steps} steps`)),
      make("thead", {}, head), make("tbody", {}, ...body))),
    make("p", {class: "note"}, "Keys: ← → one step, Shift with ← → one block, p plays. Figures " +
      "show numbers under the pointer, or with Tab and the arrow keys." + (data.left_out.length
        ? ` Left out of this page, for its size: ${data.left_out.join("; ")}.` : "")));
  const table = trajectory.querySelector(".scroll");  // the step's column is in sight
  table.scrollLeft = state.step / block.steps * (table.scrollWidth - table.clientWidth);
}

// ------------------------------------------------------------------------- attention over the text

function attentionOf(step) {
  const block = data.attention?.blocks.find(
    (one) => one.sequence === state.sequence && one.block === state.block);
  return block?.steps.find((one) => one.step === step);
}

const headKey = (layer, head) => `${layer},${head}`;
const headName = ([layer, head]) => `layer ${data.layers[layer]}, head ${data.heads[head]}`;

/** The keys to show, by position: all, or those near the largest weights and the block. */
function shownKeys(keys) {
  if (keys.length <= 300) return keys.map(() => true);
  const largest = [...keys].sort((a, b) => b.weight - a.weight).slice(0, 8);
  const shown = keys.map(() => false);
  keys.forEach((key, i) => {
    if (!key.inside && !largest.includes(key)) return;
    for (let k = Math.max(0, i - 12); k < Math.min(keys.length, i + 13); ++k) shown[k] = true;
  });
  return shown;
}

/** A key's chip; keys that end the text, one after the other, are one chip with their sum. */
function keyChips(keys, query, largest) {
  const shown = shownKeys(keys);
  const chips = [];
  let hidden = 0;
  const gap = () => {
    if (hidden > 0) chips.push(make("span", {class: "note"}, ` … ${hidden} keys … `));
    hidden = 0;
  };
  for (let i = 0, end = 0; i < keys.length; i = end) {
    end = i + 1;
    if (!shown[i]) {
      hidden += 1;
      continue;
    }
    while (ends.has(keys[i].token) && end < keys.length && ends.has(keys[end].token) && shown[end]) ++end;
    gap();
    const run = keys.slice(i, end);
    const weight = run.reduce((sum, key) => sum + key.weight, 0);
    const shade = Math.min(9, Math.floor(Math.sqrt(Math.max(0, weight) / largest) * 10));
    const kinds = [`w${shade}`, run[0].inside ? "inside" : "", run[0].position === query ? "query" : ""];
    const text = run[0].token < 0 ? "·" : data.texts[run[0].token];
    chips.push(make("bdi", {
      class: kinds.filter(Boolean).join(" "), "data-position": run[0].position, "data-weight": weight,
      "data-tip": (run.length > 1 ? `positions ${run[0].position} to ${run.at(-1).position}`
                                  : `position ${run[0].position}`) + `, weight ${number(weight)}`,
    }, run.length > 1 ? `${text} × ${run.length}` : text));
  }
  gap();
  return chips;
}

const looked = make("div", {class: "explore", id: "explore-attention"});
function drawAttention() {
  const still = byId("looked-at");
  still?.classList.toggle("still", true);
  if (!data.attention) return;
  const title = make("p", {}, make("b", {}, "What a query looks at."));
  const entry = attentionOf(state.step);
  if (!entry) {
    looked.replaceChildren(title, make("p", {class: "note"}, `No attention of step ${state.step} is on ` +
      "this page. Choose a step that decides a token, in a block with recorded weights."));
    return;
  }
  const query = entry.queries.find((one) => one.position === state.position) ?? entry.queries[0];
  const heads = data.attention.heads.filter((one) => headKey(...one) in query.heads);
  const choices = make("p", {class: "note"}, "Heads with weights on this page (layer.head): ",
    ...heads.flatMap((head) => [
      button(`${data.layers[head[0]]}.${data.heads[head[1]]}`, headName(head), () => change({
        layer: data.layers[head[0]], head: data.heads[head[1]]})), " "]));
  const fits = ([layer, head]) => (state.layer === null || data.layers[layer] === state.layer) &&
    (state.head === null || data.heads[head] === state.head);
  const head = heads.find(fits);
  if (!head) {
    looked.replaceChildren(title, make("p", {class: "note"},
      "The attention of the chosen layer and head is not on this page."), choices);
    return;
  }
  const weights = shares(query.heads[headKey(...head)]).map((root) => root * root);
  const outside = data.attention.keys[entry.keys.outside];
  const tokens = [...outside.tokens, ...entry.keys.tokens];
  const places = outside.positions.length === outside.tokens.length ? outside.positions
    : outside.tokens.map((_, i) => outside.positions[0] + i);
  const keys = [...places, ...entry.keys.positions].map((position, i) => ({
    position, weight: weights[i], inside: i >= places.length,
    token: tokens[i]}));
  keys.sort((a, b) => a.position - b.position);
  const sorted = [...keys].sort((a, b) => b.weight - a.weight);
  const block = blockNow();
  const token = tokenAt(block, block.positions.indexOf(query.position), state.step);
  title.append(` Of ${headName(head)}, at step ${state.step} of block ${state.block}. The query at position ${
    query.query} decides “${data.texts[token] ?? "·"}” at position ${query.position}. Shade: square ` +
    `root of the weight; underlined: the block; framed: the query. n = ${keys.length} keys.`);
  const others = entry.queries.length < 2 ? [] : [make("p", {class: "note"}, "Decided at this step: ",
    ...entry.queries.flatMap((one) => [button(`position ${one.position}`, "Show its query",
      () => change({position: one.position})), " "]))];
  looked.replaceChildren(
    title, make("p", {class: "looked-at"}, ...keyChips(keys, query.query, sorted[0].weight)), ...others,
    choices, make("details", {}, make("summary", {}, "The largest weights"), make(
      "table", {class: "numbers"}, make("tbody", {}, ...sorted.slice(0, 8).map((key) => make(
        "tr", {}, make("th", {scope: "row"}, `${key.position}`),
        make("td", {}, key.token < 0 ? "·" : data.texts[key.token]), make("td", {}, number(key.weight))))))));
}

// ------------------------------------------------------------------- figures of a layer and a head

function viridis(share) {
  const place = Math.min(1, Math.max(0, share)) * (data.viridis.length - 1);
  const low = Math.min(Math.floor(place), data.viridis.length - 2);
  return [1, 3, 5].map((at) => {
    const [a, b] = [low, low + 1].map((i) => parseInt(data.viridis[i].slice(at, at + 2), 16));
    return Math.round(a + (place - low) * (b - a));
  });
}

/** A square matrix as coloured cells; told(i, j, value) is the text of a cell. */
function heatmap(values, least, told) {
  const size = Math.round(Math.sqrt(values.length));
  const canvas = make("canvas", {width: size, height: size, tabindex: 0, role: "img",
                                 "aria-label": told(0, 0, values[0]).split("\n")[0]});
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  values.forEach((value, i) => {
    const at = 4 * ((i % size) * size + Math.floor(i / size));  // x: first index, y: second
    const colour = Number.isNaN(value) ? [138, 138, 138] : viridis((value - least) / (1 - least));
    image.data.set([...colour, 255], at);
  });
  context.putImageData(image, 0, 0);
  let cell = [0, 0];
  const show = () => {
    const box = canvas.getBoundingClientRect();
    showTip(told(...cell, values[cell[0] * size + cell[1]]), box.left + (cell[0] + 0.5) * box.width / size,
            box.top + (cell[1] + 0.5) * box.height / size);
  };
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const inside = (at, length) => Math.min(size - 1, Math.max(0, Math.floor(at / length * size)));
    cell = [inside(event.clientX - box.left, box.width), inside(event.clientY - box.top, box.height)];
    show();
  });
  canvas.addEventListener("keydown", (event) => {
    const by = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
    if (!by) return;
    event.preventDefault();
    cell = cell.map((at, i) => Math.min(size - 1, Math.max(0, at + by[i])));
    show();
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("blur", hideTip);
  return canvas;
}

const PATHS = ["A_out", "A_in"];

/** Puts `live` in place of a figure's drawing; null: back to the static one. */
function swap(name, live) {
  const figure = byId(name);
  if (!figure) return;
  figure.querySelector(":scope > .explore")?.remove();
  figure.classList.toggle("swapped", live !== null && live.dataset.adds === undefined);
  if (live) figure.prepend(live);
}

const chosenText = () => [state.layer === null ? "" : `layer ${state.layer}`,
                          state.head === null ? "all heads" : `head ${state.head}`].filter(Boolean).join(", ");

function drawHeatmaps() {
  const maps = data.heatmaps;
  if (!maps) return;
  const layer = state.layer ?? data.shown.layer;
  const still = layer === data.shown.layer && state.head === (data.shown.head ?? null);
  const key = [data.layers.indexOf(layer), ...(state.head === null ? [] : [data.heads.indexOf(state.head)])];
  const found = maps.maps[key.join(",")];
  if (still || !found) {
    for (const name of ["token-similarity", "step-similarity"]) {
      swap(name, still ? null : make("p", {class: "explore note", "data-adds": ""},
        `Left out of this page for its size: ${chosenText()}. The drawing shows another choice.`));
    }
    return;
  }
  const least = Math.min(...[...found.token, ...found.step].map((one) => one.least));
  const where = `Layer ${layer}, ${state.head === null ? "all heads" : `head ${state.head}`}, sequence ${
    maps.sequence}, block ${maps.block}. One colour scale, from ${number(least)} to 1.`;
  const pairs = maps.pairs.map(([a, b]) => `steps ${a} → ${b}`);
  const named = (text) => make("span", {}, text);
  swap("token-similarity", make("div", {class: "explore"}, make("p", {class: "note"}, where), make(
    "div", {class: "maps", style: `grid-template-columns:max-content repeat(${pairs.length},max-content)`},
    named(""), ...pairs.map(named), ...PATHS.flatMap((path, p) => [
      named(path), ...pairs.map((pair, i) => heatmap(
        decoded(found.token[p * pairs.length + i]), least, (x, y, value) =>
          `${pair}, ${path}\ntoken, step s: ${x}\ntoken, step s+1: ${y}\ncosine: ${number(value)}`))]))));
  swap("step-similarity", make("div", {class: "explore"}, make("p", {class: "note"}, where), make(
    "div", {class: "maps", style: "grid-template-columns:max-content max-content"}, ...PATHS.map(named),
    ...found.step.map((one, p) => heatmap(decoded(one), least, (x, y, value) =>
      `${PATHS[p]}\nstep: ${x + 1}\nstep: ${y + 1}\nmean cosine: ${number(value)}`)))));
}

/** Circle, square, triangles, diamond and pentagon, in the order of the static drawings. */
const SHAPES = [
  (x, y) => `M${x - 4},${y}a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z`,
  (x, y) => `M${x - 3.5},${y - 3.5}h7v7h-7z`,
  (x, y) => `M${x},${y - 5}l5,8h-10z`,
  (x, y) => `M${x},${y + 5}l5,-8h-10z`,
  (x, y) => `M${x},${y - 5}l5,5l-5,5l-5,-5z`,
  (x, y) => `M${x},${y - 5}l5,3.5l-2,5.5h-6l-2,-5.5z`,
];
const shapeOf = (s) => SHAPES[s % SHAPES.length];

function chart({places, names, colors, x, y, even}, series) {
  const right = 44 + 7 * Math.max(...names.map((name) => name.length));  // room for the key
  const [width, height, left, top, bottom] = [720, 300, 64, 12, 46];
  const all = series.flat().filter(Number.isFinite);
  if (all.length === 0) return make("p", {class: "note"}, "No values.");
  const most = Math.max(...all);
  const lowest = Math.min(...all);
  const unit = 10 ** Math.floor(Math.log10(Math.max(most - (lowest > 0.5 ? lowest : 0), 1e-9)));
  const from = lowest > 0.5 ? Math.floor(lowest / unit) * unit : Math.min(0, lowest);
  const to = Math.max(from + unit, Math.ceil(most / unit - 1e-9) * unit);
  const at = (i) => even ? i : places[i];
  const [first, last] = [at(0), at(places.length - 1)];
  const px = (i) => left + 8 + (at(i) - first) / (last - first || 1) * (width - left - right - 16);
  const py = (value) => height - bottom - (value - from) / (to - from) * (height - top - bottom);
  const svg = make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": y});
  const label = (text, attributes) => svg.append(make("text", attributes, text));
  for (let i = 0; i <= 5; ++i) {
    const value = from + (to - from) * i / 5;
    svg.append(make("path", {d: `M${left},${py(value)}H${width - right}`, stroke: "#80808070", fill: "none"}));
    label(String(Number(value.toPrecision(4))), {x: left - 6, y: py(value) + 4, "text-anchor": "end"});
  }
  const every = Math.ceil(places.length / 12);
  places.forEach((place, i) => i % every === 0 &&
    label(`${place}`, {x: px(i), y: height - bottom + 18, "text-anchor": "middle"}));
  label(x, {x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle"});
  label(y, {x: 14, y: (top + height - bottom) / 2, "text-anchor": "middle",
            transform: `rotate(-90 14 ${(top + height - bottom) / 2})`});
  const marks = [];
  series.forEach((values, s) => {
    const points = values.map((value, i) => [px(i), py(value), i, value]).filter((one) => Number.isFinite(one[3]));
    svg.append(make("path", {d: `M${points.map(([a, b]) => `${a},${b}`).join("L")}`, fill: "none",
                             stroke: colors[s], "stroke-width": 2}));
    for (const [a, b, i, value] of points) {
      svg.append(make("path", {d: shapeOf(s)(a, b), fill: colors[s]}));
      marks.push({x: a, y: b, text: `${names[s] || chosenText()}\n${x}: ${places[i]}\n${y}: ${number(value)}`});
    }
    svg.append(make("path", {d: shapeOf(s)(width - right + 18, top + 18 * s + 8), fill: colors[s]}));
    label(names[s], {x: width - right + 28, y: top + 18 * s + 12});
  });
  watch(svg, marks);
  return svg;
}

function drawCurves() {
  const all = state.layer === null && state.head === null;
  // Of all layers together, the KV heads of the first one: those of others may be others.
  const group = data.heads_per_kv_head[state.layer === null ? 0 : slotOf(data.layers, state.layer)];
  const kvHead = state.head === null ? null : Math.floor(state.head / group);
  for (const [name, curves] of Object.entries(data.curves)) {
    if (all) {
      swap(name, null);
      continue;
    }
    const [heads, head] = curves.kv ? [data.kv_heads, kvHead] : [data.heads, state.head];
    const slot = slotOf(heads, head);
    if (slot < 0) {
      swap(name, null);
      continue;
    }
    const index = slotOf(data.layers, state.layer) * (heads.length + 1) + slot;
    const length = curves.places.length;
    const series = curves.values.map((one) => decoded(one).slice(index * length, (index + 1) * length));
    swap(name, make("div", {class: "explore"}, make("p", {class: "note"}, `${
      state.layer === null ? "All layers" : `Layer ${state.layer}`}, ${
      head === null ? "all heads" : `${curves.kv ? "KV head" : "head"} ${head}`}: mean over blocks.`),
      chart(curves, series)));
  }
}

// ------------------------------------------------------------------------------------------ tables

/** The number that a cell begins with: "1,234", "0.98 (n = 3)", "–" as NaN. */
const cellNumber = (text) => parseFloat(text.replace(/,/g, ""));

function sortable(table) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  [...table.tHead.rows[0].cells].forEach((cell, column) => {
    const text = cell.textContent;
    cell.replaceChildren(make("button", {type: "button", class: "sort", title: "Sort", click: () => {
      const next = {ascending: "descending", descending: null}[cell.getAttribute("aria-sort")];
      const order = next === undefined ? "ascending" : next;
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      if (order) cell.setAttribute("aria-sort", order);
      const texts = new Map(original.map((row) => [row, row.cells[column]?.textContent ?? ""]));
      const numeric = [...texts.values()].some((one) => !Number.isNaN(cellNumber(one)));
      const compare = (a, b) => {
        const [x, y] = [texts.get(a), texts.get(b)];
        if (!numeric) return x.localeCompare(y);
        const [p, q] = [cellNumber(x), cellNumber(y)];
        if (Number.isNaN(p) || Number.isNaN(q)) return 0;
        return p - q;
      };
      const empty = (row) => numeric && Number.isNaN(cellNumber(texts.get(row)));
      const rows = [...original];
      if (order) {
        rows.sort((a, b) => empty(a) - empty(b) || (order === "ascending" ? 1 : -1) * compare(a, b));
      }
      body.append(...rows);
    }}, text));
  });
}

// ------------------------------------------------------------------------------------------- start

let figuresOf = null;
function draw() {
  drawBar();
  drawTrajectory();
  drawAttention();
  const chosen = `${state.layer},${state.head}`;
  if (figuresOf === chosen) return;
  figuresOf = chosen;
  drawHeatmaps();
  drawCurves();
  frameChosen();
}

document.documentElement.classList.add("live");
byId("trajectory").append(trajectory);
if (byId("looked-at")) byId("looked-at").before(looked);
else if (data.attention) byId("attention")?.append(looked);
document.querySelector("main").append(bar);
document.body.append(tip);
for (const table of document.querySelectorAll("table.numbers")) sortable(table);
watchFigures();
addEventListener("hashchange", () => readLink() && draw());
if (!readLink()) settle();
draw();
})();
