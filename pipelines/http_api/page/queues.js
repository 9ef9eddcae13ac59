// Queues with their positions.

import { Turns, get } from "./api.js";
import { Pager, Table, element } from "./dom.js";
import { NONE, count } from "./format.js";

const LIMIT = 50;
const COLUMNS = [
  { label: "Queue", of: (queue) => name(queue) },
  { label: "From", num: true, of: (queue) => count(queue.min_offset) },
  { label: "Poppable to", num: true, of: (queue) => count(queue.commit_position) },
  { label: "Read to", num: true, of: (queue) => count(queue.built_to) },
  { label: "Log end", num: true, of: (queue) => count(queue.log_end) },
  { label: "To read", num: true, of: (queue) => behind(queue) },
  { label: "Messages", num: true, of: (queue) => count(queue.messages) },
  { label: "Lanes", num: true, of: (queue) => count(queue.lanes) },
];

export class Queues {
  constructor(section) {
    this.form = section.querySelector("form");
    this.turns = new Turns();
    this.table = new Table(section.querySelector("table"), COLUMNS, "no queues");
    this.pager = new Pager(section.querySelector(".scroll"), LIMIT, () => this.refresh());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => {
        this.pager.skip = 0;
        this.refresh();
      }, 150);
    });
  }

  async refresh() {
    const isLatest = this.turns.begin();
    const search = new FormData(this.form).get("search");
    const page = await get("queues", { search, skip: this.pager.skip, limit: LIMIT });
    if (!isLatest()) return;
    this.table.show(page.queues);
    this.pager.show(page.queues.length, page.total);
  }
}

function name(queue) {
  const kind = queue.queue_type || "not declared";
  return {
    key: `${queue.topic}/${queue.queue_id} ${kind} ${queue.problem}`,
    nodes: () => [
      element("span", { class: "group" }, `${queue.topic}/${queue.queue_id}`),
      element("span", { class: "dim small" }, kind),
      ...(queue.problem ? [element("span", { class: "group bad small" }, `the job refuses it: ${queue.problem}`)] : []),
    ],
  };
}

function behind(queue) {
  if (queue.log_end === null || queue.built_to === null) return NONE;
  return count(Math.max(0, queue.log_end - queue.built_to));
}
