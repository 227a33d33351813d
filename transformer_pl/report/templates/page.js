"use strict";

// ---- The results table: a heading sorts by its column -------------------------------------------------------------

// The number at the start of a cell ("45.1 ± 0.3", "450K", "7.6M", "<0.001"), or null where there is none.
const leadingNumber = (text) => {
  const match = /^[<+#]?(-?[\d.,]+(?:e[+-]?\d+)?)([KMG])?/.exec(text);
  if (!match) return null;
  const factor = { K: 1e3, M: 1e6, G: 1e9 }[match[2]] ?? 1;
  return parseFloat(match[1].replaceAll(",", "")) * factor;
};

// Numbers come first, in the given direction (1 or -1); cells without a number follow as text, in the same direction.
const compareCells = (a, b, direction) => {
  const x = leadingNumber(a), y = leadingNumber(b);
  if (x !== null && y !== null) return direction * (x - y);
  if (x !== null || y !== null) return x !== null ? -1 : 1;
  return direction * a.localeCompare(b);
};

const results = document.getElementById("results");
const headings = results.querySelectorAll("thead th");
const sortBy = (heading, column) => {
  const direction = heading.ariaSort === "descending" ? 1 : -1; // the first press sorts descending
  headings.forEach((other) => { other.ariaSort = null; });
  heading.ariaSort = direction > 0 ? "ascending" : "descending";
  const body = results.tBodies[0];
  const cell = (row) => { // without the small print
    const texts = [...row.cells[column].childNodes].filter((node) => node.nodeName !== "SMALL");
    return texts.map((node) => node.textContent).join("").trim();
  };
  [...body.rows].sort((a, b) => compareCells(cell(a), cell(b), direction)).forEach((row) => body.append(row));
};
headings.forEach((heading, column) => {
  heading.querySelector("button").addEventListener("click", () => sortBy(heading, column));
});
const unfold = document.getElementById("unfold");
unfold?.addEventListener("change", () => results.classList.toggle("unfolded", unfold.checked));

// ---- Attention --------------------------------------------------------------------------------------------------------
// attention.sentences: for each sentence its text, its source and target tokens, and by row and site the weights. These
// are base64 of one byte per weight (255 is 1), in the order layers, heads, queries, keys.

const attention = JSON.parse(document.getElementById("maps").textContent);
const addSvg = (name, attributes, parent) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
  if (parent) parent.append(element);
  return element;
};
const addText = (text, attributes, parent) => {
  addSvg("text", attributes, parent).textContent = text;
};

// Shows a drawing at its full size, whatever the length of its labels.
const showWhole = (svg, parent) => {
  const frame = document.createElement("div");
  frame.tabIndex = 0;
  frame.append(svg);
  parent.append(frame);
  const { x, y, width, height } = svg.getBBox();
  svg.setAttribute("viewBox", `${x - 2} ${y - 2} ${width + 4} ${height + 4}`);
  svg.setAttribute("width", width + 4);
  svg.setAttribute("height", height + 4);
};

// A head as a matrix: queries down, keys across. weight(i, j) is from 0 to 1.
const drawMatrix = (queries, keys, weight) => {
  const size = 16; // of a cell
  const svg = addSvg("svg", { role: "img", "aria-label": "the weights as a matrix" });
  keys.forEach((key, j) => addText(key, { transform: `translate(${j * size + 12} -6) rotate(-60)` }, svg));
  queries.forEach((query, i) => {
    addText(query, { x: -6, y: i * size + 12, "text-anchor": "end" }, svg);
    keys.forEach((_, j) => {
      const opacity = weight(i, j).toFixed(3);
      addSvg("rect", { x: j * size, y: i * size, width: size, height: size, "fill-opacity": opacity }, svg);
    });
  });
  return svg;
};

// The same head as lines from queries (left) to keys (right), the more opaque the greater the weight.
const drawLines = (queries, keys, weight) => {
  const step = 18;
  const svg = addSvg("svg", { role: "img", "aria-label": "the weights as lines" });
  queries.forEach((_, i) => keys.forEach((_, j) => {
    if (weight(i, j) <= 0.02) return;
    const ends = { x1: 0, x2: 120, y1: i * step, y2: j * step };
    addSvg("line", { ...ends, "stroke-width": 2.5, "stroke-opacity": weight(i, j).toFixed(3) }, svg);
  }));
  queries.forEach((query, i) => addText(query, { x: -6, y: 4 + i * step, "text-anchor": "end" }, svg));
  keys.forEach((key, j) => addText(key, { x: 126, y: 4 + j * step }, svg));
  return svg;
};

const label = (text) => Object.assign(document.createElement("span"), { textContent: text });
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }; // layers, heads

// A button with a small picture of a head: one pixel per weight.
const headButton = (name, queries, keys, weight) => {
  const button = document.createElement("button"), canvas = document.createElement("canvas");
  button.type = "button";
  button.setAttribute("aria-label", name);
  canvas.width = keys.length;
  canvas.height = queries.length;
  const context = canvas.getContext("2d");
  context.fillStyle = getComputedStyle(document.documentElement).getPropertyValue("--heat");
  queries.forEach((_, i) => keys.forEach((_, j) => {
    context.globalAlpha = weight(i, j);
    context.fillRect(j, i, 1, 1);
  }));
  button.append(canvas);
  return button;
};

if (attention.sentences.length) {
  const [sentenceMenu, rowMenu, siteMenu] = ["sentence", "row", "site"].map((id) => document.getElementById(id));
  const fillMenu = (menu, labels, values) => { // and keep the choice where it is still there
    const chosen = menu.value;
    menu.replaceChildren(...labels.map((label, i) => new Option(label, values[i])));
    if (values.map(String).includes(chosen)) menu.value = chosen;
  };
  let [chosenLayer, chosenHead] = [0, 0];

  const showHeads = () => {
    const sentence = attention.sentences[+sentenceMenu.value];
    const rows = Object.keys(sentence.rows);
    fillMenu(rowMenu, rows, rows);
    const sites = Object.keys(sentence.rows[rowMenu.value]);
    fillMenu(siteMenu, sites, sites);
    const site = siteMenu.value;
    const { layers, heads, data } = sentence.rows[rowMenu.value][site];
    const queries = site === "encoder" ? sentence.source : sentence.target;
    const keys = site === "decoder" ? sentence.target : sentence.source;
    const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    const weights = (layer, head) => (i, j) =>
      bytes[((layer * heads + head) * queries.length + i) * keys.length + j] / 255;

    const grid = document.getElementById("heads");
    const enlarge = (layer, head) => {
      [chosenLayer, chosenHead] = [layer, head];
      grid.querySelectorAll("button").forEach((button, n) => {
        const isChosen = n === layer * heads + head;
        button.setAttribute("aria-pressed", isChosen);
        button.tabIndex = isChosen ? 0 : -1; // Tab reaches the chosen head, arrow keys the others
      });
      document.getElementById("which").textContent = `${site}, layer ${layer + 1}, head ${head + 1}`;
      const weight = weights(layer, head), picture = document.getElementById("head");
      picture.replaceChildren();
      showWhole(drawMatrix(queries, keys, weight), picture);
      showWhole(drawLines(queries, keys, weight), picture);
    };
    grid.style.gridTemplateColumns = `max-content repeat(${heads}, minmax(2.5rem, 5.5rem))`;
    grid.replaceChildren(label(""), ...Array.from({ length: heads }, (_, head) => label(`head ${head + 1}`)));
    for (let layer = 0; layer < layers; layer++) {
      grid.append(label(`layer ${layer + 1}`));
      for (let head = 0; head < heads; head++) {
        const button = headButton(`layer ${layer + 1}, head ${head + 1}`, queries, keys, weights(layer, head));
        button.addEventListener("click", () => enlarge(layer, head));
        grid.append(button);
      }
    }
    grid.onkeydown = (event) => {
      const [down, right] = ARROWS[event.key] ?? [0, 0];
      const layer = chosenLayer + down, head = chosenHead + right;
      if ((!down && !right) || layer < 0 || layer >= layers || head < 0 || head >= heads) return;
      event.preventDefault();
      enlarge(layer, head);
      grid.querySelectorAll("button")[layer * heads + head].focus();
    };
    enlarge(Math.min(chosenLayer, layers - 1), Math.min(chosenHead, heads - 1));
  };

  fillMenu(sentenceMenu, attention.sentences.map((one) => one.text), attention.sentences.map((_, i) => i));
  [sentenceMenu, rowMenu, siteMenu].forEach((menu) => menu.addEventListener("change", showHeads));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showHeads); // pixels do not follow by themselves
  showHeads();
}
