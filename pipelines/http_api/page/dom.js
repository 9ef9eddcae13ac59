// Elements, tables and pagers. Texts are set as texts only: nothing that the job says is ever read as HTML.

import { NONE, count } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, ...children) {
  return finished(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return finished(document.createElementNS(SVG, name), attributes, children);
}

function finished(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

export function badge(text, kind = "") {
  return element("span", { class: `badge ${kind}` }, text);
}

export function notice(text, kind = "") {
  return element("p", { class: `notice ${kind}` }, text);
}

/* A table whose cells are replaced only where they have changed, so that the focus stays where it is.
   columns: [{label, num, of(row) -> text or {key, nodes()}}]. */
export class Table {
  constructor(table, columns, empty) {
    this.columns = columns;
    this.empty = empty;
    const heads = columns.map(({ label, num }) => element("th", { scope: "col", class: num ? "num" : "" }, label));
    this.body = element("tbody");
    table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), this.body);
  }

  show(rows) {
    if (!rows.length) {
      const cell = element("td", { colspan: this.columns.length, class: "dim" }, this.empty);
      this.body.replaceChildren(element("tr", {}, cell));
      return;
    }
    if (this.body.firstElementChild?.childElementCount !== this.columns.length) this.body.replaceChildren();
    while (this.body.childElementCount > rows.length) this.body.lastElementChild.remove();
    rows.forEach((row, number) => this.#fill(this.body.children[number] ?? this.#added(), row));
  }

  #added() {
    const cells = this.columns.map(({ label, num }) => element("td", { "data-label": label, class: num ? "num" : "" }));
    return this.body.appendChild(element("tr", {}, ...cells));
  }

  #fill(tr, row) {
    this.columns.forEach((column, number) => {
      const cell = tr.children[number];
      const content = column.of(row);
      const key = typeof content === "string" ? content : content.key;
      if (cell.shownKey === key) return;
      cell.shownKey = key;
      cell.classList.toggle("zero", key === "0" || key === NONE);
      cell.replaceChildren(...(typeof content === "string" ? (content ? [content] : []) : content.nodes()));
    });
  }
}

/* Buttons to the pages before and after; `onMove` is called with the rows to skip. total null: it is not known. */
export class Pager {
  constructor(after, limit, onMove) {
    this.limit = limit;
    this.skip = 0;
    this.text = element("span", { class: "dim small" });
    this.before = element("button", { type: "button" }, "Previous");
    this.next = element("button", { type: "button" }, "Next");
    this.before.addEventListener("click", () => this.#move(-limit));
    this.next.addEventListener("click", () => this.#move(limit));
    this.onMove = onMove;
    after.after(element("div", { class: "row pager" }, this.text, this.before, this.next));
  }

  #move(by) {
    this.skip = Math.max(0, this.skip + by);
    this.onMove();
  }

  show(shown, total, hasMore = this.skip + shown < total) {
    if (!shown && this.skip) {
      this.#move(-this.limit); // rows have gone since
      return;
    }
    const range = shown ? `${count(this.skip + 1)} to ${count(this.skip + shown)}` : "none";
    this.text.textContent = total === null ? range : `${range} of ${count(total)}`;
    this.before.disabled = !this.skip;
    this.next.disabled = !hasMore;
  }
}

export function chart(values) {
  const most = Math.max(1e-9, ...values);
  const width = 600;
  const height = 120;
  const step = width / Math.max(1, values.length - 1);
  const points = values.map((value, number) => `${(number * step).toFixed(1)},${(height - (value / most) * (height - 4)).toFixed(1)}`);
  const frame = { class: "chart", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" };
  const lines = [0.25, 0.5, 0.75].map((part) =>
    svgElement("line", { class: "grid", x1: 0, x2: width, y1: height * part, y2: height * part }),
  );
  if (values.length < 2) return svgElement("svg", frame, ...lines);
  const area = svgElement("polygon", { class: "area", points: `0,${height} ${points.join(" ")} ${width},${height}` });
  return svgElement("svg", frame, area, ...lines, svgElement("polyline", { class: "curve", points: points.join(" ") }));
}
