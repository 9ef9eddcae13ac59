// Lanes: how far each is, how old its oldest message is, who waits, and what blocks it, with the times that the state has.

import { Turns, get } from "./api.js";
import { Pager, Table, badge, element } from "./dom.js";
import { NONE, ago, clock, count, counted, duration } from "./format.js";

const LIMIT = 50;
const HOLDS = { batch: "batch in flight", pause: "paused", in_flight_max: "in-flight limit" };

export class Lanes {
  constructor(section) {
    this.form = section.querySelector("form");
    this.turns = new Turns();
    this.nowMs = Date.now();
    this.table = new Table(section.querySelector("table"), this.#columns(), "no lanes: no group has popped a queue");
    this.pager = new Pager(section.querySelector(".scroll"), LIMIT, () => this.refresh());
    this.form.addEventListener("input", () => this.#again());
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  #again() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => {
      this.pager.skip = 0;
      this.refresh();
    }, 150);
  }

  async refresh() {
    const isLatest = this.turns.begin();
    const { search, order } = Object.fromEntries(new FormData(this.form));
    const page = await get("lanes", { search, order, skip: this.pager.skip, limit: LIMIT });
    if (!isLatest()) return;
    this.nowMs = Date.now();
    this.table.show(page.lanes);
    this.pager.show(page.lanes.length, page.total);
  }

  #columns() {
    return [
      { label: "Lane", of: (lane) => name(lane) },
      { label: "Lag", num: true, of: (lane) => count(lane.lag) },
      { label: "In flight", num: true, of: (lane) => count(lane.in_flight) },
      { label: "To redeliver", num: true, of: (lane) => count(lane.available) },
      { label: "Dead", num: true, of: (lane) => count(lane.dead_lettered) },
      { label: "Next", num: true, of: (lane) => next(lane) },
      { label: "Oldest", num: true, of: (lane) => ago(lane.oldest_at_ms, this.nowMs) },
      { label: "Waits", of: (lane) => waits(lane) },
      { label: "Held", of: (lane) => this.#held(lane) },
    ];
  }

  #held(lane) {
    if (!lane.held_by) return "";
    const since = lane.held_since_ms === null ? "" : `for ${duration(this.nowMs - lane.held_since_ms)}`;
    const until = lane.held_until_ms === null ? "" : `until ${clock(lane.held_until_ms)}`;
    const text = [since, until].filter(Boolean).join(", ");
    return { key: `${lane.held_by}${text}`, nodes: () => [element("span", {}, badge(HOLDS[lane.held_by] ?? lane.held_by, "warn"), text)] };
  }
}

function name(lane) {
  const mode = lane.is_orderly ? " · orderly" : "";
  const place = `${lane.topic}/${lane.queue_id}${mode}`;
  return {
    key: `${lane.group} ${place}`,
    nodes: () => [element("span", { class: "group" }, lane.group), element("span", { class: "dim small" }, place)],
  };
}

function waits(lane) {
  if (!lane.waiting) return "";
  const clients = lane.waiting_clients.map((client) => client || "a client without a name").join(", ");
  return `${counted(lane.waiting, "pop")}: ${clients}`;
}

function next(lane) {
  if (!lane.lag) return NONE;
  const href = `#message?${new URLSearchParams({ topic: lane.topic, queue_id: lane.queue_id, queue_offset: lane.commit_offset, group: lane.group })}`;
  return { key: href, nodes: () => [element("a", { href, title: "the history of the message that the lane waits for" }, count(lane.commit_offset))] };
}
