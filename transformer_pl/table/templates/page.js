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
  body.querySelectorAll(".heading").forEach((row) => row.remove()); // they belong to the order of the file
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
// are base64 of one signed byte per weight (127 is `largest`), in the order layers, heads, queries, keys. A picture has
// weight(i, j) from -1 to 1, as shares of the scale: the colour says the sign, the opacity how far from zero it is.

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

const sign = (weight) => (weight < 0 ? "negative" : "positive");
const opacity = (weight) => Math.abs(weight).toFixed(3);

// A head as a matrix: queries down, keys across.
const drawMatrix = (queries, keys, weight) => {
  const size = 16; // of a cell
  const svg = addSvg("svg", { role: "img", "aria-label": "the weights as a matrix" });
  keys.forEach((key, j) => addText(key, { transform: `translate(${j * size + 12} -6) rotate(-60)` }, svg));
  queries.forEach((query, i) => {
    addText(query, { x: -6, y: i * size + 12, "text-anchor": "end" }, svg);
    keys.forEach((_, j) => {
      const place = { x: j * size, y: i * size, width: size, height: size };
      addSvg("rect", { ...place, class: sign(weight(i, j)), "fill-opacity": opacity(weight(i, j)) }, svg);
    });
  });
  return svg;
};

// The same head as lines from queries (left) to keys (right), the more opaque the further from zero.
const drawLines = (queries, keys, weight) => {
  const step = 18;
  const svg = addSvg("svg", { role: "img", "aria-label": "the weights as lines" });
  queries.forEach((_, i) => keys.forEach((_, j) => {
    if (Math.abs(weight(i, j)) <= 0.02) return;
    const ends = { x1: 0, x2: 120, y1: i * step, y2: j * step };
    const drawn = { class: sign(weight(i, j)), "stroke-width": 2.5, "stroke-opacity": opacity(weight(i, j)) };
    addSvg("line", { ...ends, ...drawn }, svg);
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
  const colours = getComputedStyle(document.documentElement);
  queries.forEach((_, i) => keys.forEach((_, j) => {
    context.fillStyle = colours.getPropertyValue(weight(i, j) < 0 ? "--cold" : "--heat");
    context.globalAlpha = opacity(weight(i, j));
    context.fillRect(j, i, 1, 1);
  }));
  button.append(canvas);
  return button;
};

if (attention.sentences.length) {
  const menus = ["sentence", "row", "beside", "site"].map((id) => document.getElementById(id));
  const [sentenceMenu, rowMenu, besideMenu, siteMenu] = menus;
  const fillMenu = (menu, labels, values) => { // and keep the choice where it is still there
    const chosen = menu.value;
    menu.replaceChildren(...labels.map((label, i) => new Option(label, values[i])));
    if (values.map(String).includes(chosen)) menu.value = chosen;
  };
  const short = (number) => `${+number.toFixed(2)}`.replace("-", "\u2212");
  const panels = [...document.querySelectorAll(".panel")];
  let [chosenLayer, chosenHead] = [0, 0]; // in both panels, as far as a row has as many

  // Fills a panel with the heads of a row, and returns what shows the chosen head in it.
  const showHeads = (panel, row, { layers, heads, values }, full, queries, keys) => {
    const at = (layer, head) => (layer * heads + head) * queries.length * keys.length;
    const weights = (layer, head) => (i, j) => values[at(layer, head) + i * keys.length + j] / full;
    const [grid, which, picture] = panel.children;
    const enlarge = () => {
      const layer = Math.min(chosenLayer, layers - 1), head = Math.min(chosenHead, heads - 1);
      grid.querySelectorAll("button").forEach((button, n) => {
        const isChosen = n === layer * heads + head;
        button.setAttribute("aria-pressed", isChosen);
        button.tabIndex = isChosen ? 0 : -1; // Tab reaches the chosen head, arrow keys the others
      });
      const own = values.slice(at(layer, head), at(layer, head + 1));
      const range = `weights from ${short(Math.min(...own))} to ${short(Math.max(...own))}`;
      which.textContent = `${row}, ${siteMenu.value}, layer ${layer + 1}, head ${head + 1}: ${range}`;
      picture.replaceChildren();
      showWhole(drawMatrix(queries, keys, weights(layer, head)), picture);
      showWhole(drawLines(queries, keys, weights(layer, head)), picture);
    };
    const choose = (layer, head) => {
      [chosenLayer, chosenHead] = [layer, head];
      enlargeAll();
    };
    grid.style.gridTemplateColumns = `max-content repeat(${heads}, minmax(2.5rem, 5.5rem))`;
    grid.replaceChildren(label(""), ...Array.from({ length: heads }, (_, head) => label(`head ${head + 1}`)));
    for (let layer = 0; layer < layers; layer++) {
      grid.append(label(`layer ${layer + 1}`));
      for (let head = 0; head < heads; head++) {
        const button = headButton(`layer ${layer + 1}, head ${head + 1}`, queries, keys, weights(layer, head));
        button.addEventListener("click", () => choose(layer, head));
        grid.append(button);
      }
    }
    grid.onkeydown = (event) => {
      const [down, right] = ARROWS[event.key] ?? [0, 0];
      const layer = Math.min(chosenLayer, layers - 1) + down, head = Math.min(chosenHead, heads - 1) + right;
      if ((!down && !right) || layer < 0 || layer >= layers || head < 0 || head >= heads) return;
      event.preventDefault();
      choose(layer, head);
      grid.querySelectorAll("button")[layer * heads + head].focus();
    };
    return enlarge;
  };

  let enlargeAll = () => {};
  const showRows = () => {
    const sentence = attention.sentences[+sentenceMenu.value], rows = Object.keys(sentence.rows);
    fillMenu(rowMenu, rows, rows); // base comes first
    const sites = Object.keys(sentence.rows[rowMenu.value]);
    fillMenu(siteMenu, sites, sites);
    const site = siteMenu.value, others = rows.filter((row) => row !== rowMenu.value && sentence.rows[row][site]);
    fillMenu(besideMenu, ["none", ...others], ["", ...others]);
    const shown = [rowMenu.value, besideMenu.value].filter(Boolean);
    const ofRows = shown.map((row) => {
      const { data, largest, ...sizes } = sentence.rows[row][site];
      const bytes = Int8Array.from(atob(data), (character) => character.charCodeAt(0));
      return { ...sizes, largest, values: Array.from(bytes, (byte) => (byte * largest) / 127) };
    });
    const full = Math.max(...ofRows.map((one) => one.largest));
    const isSigned = ofRows.some((one) => one.values.some((value) => value < 0));
    const scale = document.querySelector(".scale"), ends = scale.querySelectorAll("span");
    scale.classList.toggle("signed", isSigned);
    ends[0].textContent = isSigned ? short(-full) : "0";
    ends[1].textContent = short(full);
    const queries = site === "encoder" ? sentence.source : sentence.target;
    const keys = site === "decoder" ? sentence.target : sentence.source;
    panels.forEach((panel, i) => { panel.hidden = i >= shown.length; });
    const enlarges = shown.map((row, i) => showHeads(panels[i], row, ofRows[i], full, queries, keys));
    enlargeAll = () => enlarges.forEach((enlarge) => enlarge());
    enlargeAll();
  };

  fillMenu(sentenceMenu, attention.sentences.map((one) => one.text), attention.sentences.map((_, i) => i));
  menus.forEach((menu) => menu.addEventListener("change", showRows));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showRows); // pixels do not follow by themselves
  showRows();
  besideMenu.selectedIndex = Math.min(1, besideMenu.length - 1); // base beside the second row
  showRows();
}
