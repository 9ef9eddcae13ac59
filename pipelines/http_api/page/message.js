// The history of a message, as `popstream why` shows it.

import { get } from "./api.js";
import { badge, element, notice } from "./dom.js";
import { clock, moment } from "./format.js";

const KINDS = { done: "good", dead: "bad", leased: "warn", waiting: "warn", fresh: "" };

export class Message {
  constructor(section) {
    this.form = section.querySelector("form");
    this.life = section.querySelector("#life");
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      location.hash = `#message?${new URLSearchParams(given(this.form))}`;
      this.#tell();
    });
  }

  open(parameters) {
    if (!parameters.has("topic")) return;
    for (const field of this.form.elements) if (field.name) field.value = parameters.get(field.name) ?? "";
    this.#tell();
  }

  async #tell() {
    const asked = given(this.form);
    const key = JSON.stringify(asked);
    if (this.asking === key) return;
    // The answer to what was asked before may come later, and is then not told.
    this.asking = key;
    this.life.replaceChildren(element("p", { class: "dim" }, "reading the tables"));
    try {
      const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
      const found = await get("message", { ...asked, zone });
      if (this.asking === key) this.life.replaceChildren(...told(found));
    } catch (error) {
      if (this.asking === key) this.life.replaceChildren(notice(error.message, "bad"));
    } finally {
      if (this.asking === key) this.asking = null;
    }
  }

  async refresh() {}
}

function given(form) {
  return Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
}

function told({ story, told: sentences, zone }) {
  const place = `${story.topic}/${story.queue_id}/${story.queue_offset}`;
  const all = [...sentences.events, ...sentences.groups.flatMap((group) => group.events)];
  const first = all.length ? `from ${moment(all[0].at_ms)} on, times in sentences in ${zone}` : "";
  const head = element("div", { class: "row" }, element("h3", {}, place), element("span", { class: "dim small" }, first));
  const groups = sentences.groups.map((group) =>
    element(
      "div",
      { class: "stack" },
      element("div", { class: "row" }, element("h3", {}, `group ${group.group}`), badge(group.state, KINDS[group.state] ?? "")),
      events(group.events),
      notice(group.verdict, group.state === "dead" ? "bad" : ""),
    ),
  );
  return [head, events(sentences.events), ...groups];
}

function events(found) {
  const items = found.map((event) => {
    const time = element("time", { datetime: new Date(event.at_ms).toISOString(), title: moment(event.at_ms) }, clock(event.at_ms));
    return element("li", {}, time, element("span", {}, event.text));
  });
  return element("ol", { class: "life" }, ...items);
}
