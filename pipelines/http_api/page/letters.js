// Dead letters: look at them, and redrive some behind the token.

import { Turns, get, post } from "./api.js";
import { Pager, Table, element, notice } from "./dom.js";
import { ago, bytes, count, counted, moment } from "./format.js";

const LIMIT = 50;
const AT_ONCE = 500;
const shownTurns = new Turns();

export class Letters {
  constructor(section) {
    this.filter = section.querySelector("#letters-filter");
    this.form = section.querySelector("#redrive");
    this.result = section.querySelector("#redrive-result");
    this.chosen = new Set();
    this.turns = new Turns();
    this.nowMs = Date.now();
    this.table = new Table(section.querySelector("table"), this.#columns(), "no dead letters");
    this.pager = new Pager(section.querySelector(".scroll"), LIMIT, () => this.load());
    this.filter.addEventListener("submit", (event) => {
      event.preventDefault();
      this.pager.skip = 0;
      this.load();
    });
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#redrive(event.submitter?.value === "all");
    });
    this.#countChosen();
  }

  open() {
    return this.load();
  }

  // Not by itself: to read letters costs the job and Kafka something.
  async refresh() {}

  async load() {
    const isLatest = this.turns.begin();
    try {
      const page = await get("dead-letters", { ...this.#selection(), handled: this.filter.elements.handled.checked || null, skip: this.pager.skip, limit: LIMIT });
      if (!isLatest()) return;
      this.nowMs = Date.now();
      this.table.show(page.letters);
      this.pager.show(page.letters.length, null, page.has_more);
      const shown = new Set(page.letters.map((letter) => letter.letter));
      this.chosen = new Set([...this.chosen].filter((letter) => shown.has(letter)));
    } catch (error) {
      if (!isLatest()) return;
      this.table.show([]);
      this.pager.show(0, null, false);
      this.result.replaceChildren(notice(error.message, "bad"));
    }
    this.#countChosen();
  }

  #selection() {
    const { topic, group, reason } = this.filter.elements;
    const chosen = { topic: topic.value, group: group.value, reason: reason.value };
    return Object.fromEntries(Object.entries(chosen).filter(([, value]) => value !== ""));
  }

  #columns() {
    return [
      { label: "Letter", of: (letter) => this.#choice(letter) },
      { label: "Given up", of: (letter) => `${ago(letter.given_up_ms, this.nowMs)} ago` },
      { label: "Group", of: (letter) => letter.group },
      { label: "Message", of: (letter) => message(letter) },
      { label: "Attempts", num: true, of: (letter) => count(letter.attempts) },
      { label: "Redrives", num: true, of: (letter) => count(letter.redrives) },
      { label: "Why", of: (letter) => why(letter) },
      { label: "Handled", of: (letter) => handled(letter) },
    ];
  }

  #choice(letter) {
    const can = !letter.handling && !letter.cannot_redrive;
    return {
      key: `${letter.letter} ${can} ${this.chosen.has(letter.letter)}`,
      nodes: () => {
        const box = element("input", { type: "checkbox", "aria-label": `choose the letter ${letter.letter}` });
        box.disabled = !can;
        box.checked = this.chosen.has(letter.letter);
        box.addEventListener("change", () => {
          if (box.checked) this.chosen.add(letter.letter);
          else this.chosen.delete(letter.letter);
          this.#countChosen();
        });
        return [element("span", { class: "row choice" }, box, this.#opener(letter))];
      },
    };
  }

  #opener(letter) {
    const button = element("button", { type: "button", class: "link", title: "show the message" }, letter.letter);
    button.addEventListener("click", () => show(letter.letter));
    return button;
  }

  #countChosen() {
    const [one, all] = this.form.querySelectorAll("button");
    one.textContent = `Redrive the chosen (${this.chosen.size})`;
    one.disabled = !this.chosen.size || this.isBusy;
    all.disabled = Boolean(this.isBusy);
  }

  async #redrive(all) {
    const asked = {
      ...(all ? this.#selection() : { letters: [...this.chosen] }),
      to: this.form.elements.to.value,
      comment: this.form.elements.comment.value,
    };
    this.isBusy = true;
    this.#countChosen();
    try {
      const planned = await post("redrive", { ...asked, dry_run: true });
      if (!planned.letters) {
        this.result.replaceChildren(notice(`nothing to redrive${left(planned)}`, "warn"));
      } else if (await isMeant(planned, asked)) {
        await this.#send(asked);
        this.chosen.clear();
      }
    } catch (error) {
      this.result.replaceChildren(notice(error.message, "bad"));
    } finally {
      this.isBusy = false;
    }
    await this.load();
  }

  async #send(asked) {
    let letters = 0;
    let report;
    do {
      report = await post("redrive", asked);
      letters += report.letters;
      this.result.replaceChildren(notice(`${counted(letters, "dead letter")} redriven${left(report)}`, report.left_count ? "warn" : ""));
    } while (report.letters === AT_ONCE);
  }
}

function left(report) {
  if (!report.left_count) return "";
  return `; ${counted(report.left_count, "letter")} stay: ${report.left.slice(0, 3).map((each) => `${each.place} ${each.why}`).join("; ")}`;
}

function isMeant(planned, { to }) {
  const dialog = document.querySelector("#confirm");
  const more = planned.letters === AT_ONCE ? " or more" : "";
  const whom = to === "group" ? "the group that gave it up" : "every group of its topic";
  dialog.querySelector("#confirm-text").textContent = `Send the messages of ${count(planned.letters)}${more} dead letters again, each to ${whom}?${left(planned)}`;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true }));
}

async function show(place) {
  const isLatest = shownTurns.begin();
  const dialog = document.querySelector("#letter");
  const body = dialog.querySelector("#letter-body");
  dialog.querySelector("#letter-title").textContent = `Dead letter ${place}`;
  body.replaceChildren(element("p", { class: "dim" }, "reading it"));
  dialog.showModal();
  try {
    const letter = await get("dead-letter", { letter: place });
    if (isLatest()) body.replaceChildren(...content(letter));
  } catch (error) {
    if (isLatest()) body.replaceChildren(notice(error.message, "bad"));
  }
}

function content(letter) {
  const facts = {
    Message: `${letter.topic}/${letter.queue_id} offset ${count(letter.queue_offset)}`,
    Group: letter.group,
    "Given up": moment(letter.given_up_ms),
    Attempts: count(letter.attempts),
    Why: why(letter),
    Handled: handled(letter) || "no",
    ...(letter.cannot_redrive ? { "No redrive": letter.cannot_redrive } : {}),
  };
  const rows = Object.entries(facts).flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]);
  const headers = letter.headers.map(([name, value]) => `${name}: ${value ?? ""}`).join("\n");
  const link = `#message?${new URLSearchParams({ topic: letter.topic, queue_id: letter.queue_id, queue_offset: letter.queue_offset })}`;
  const life = element("a", { href: link }, "the history of this message");
  life.addEventListener("click", () => document.querySelector("#letter").close());
  return [
    element("dl", { class: "facts" }, ...rows),
    life,
    ...text("Headers", headers),
    ...text("Key", letter.key ?? letter.key_base64 ?? ""),
    ...text(letter.value_base64 ? "Value, in base 64" : `Value, ${bytes(new Blob([letter.value ?? ""]).size)}`, letter.value ?? letter.value_base64 ?? ""),
  ];
}

function text(title, value) {
  return value ? [element("h3", {}, title), element("pre", { class: "mono", tabindex: "0" }, value)] : [];
}

function message(letter) {
  if (!letter.topic) return "?";
  const href = `#message?${new URLSearchParams({ topic: letter.topic, queue_id: letter.queue_id, queue_offset: letter.queue_offset, group: letter.group })}`;
  const name = `${letter.topic}/${letter.queue_id}/${letter.queue_offset}`;
  return { key: name, nodes: () => [element("a", { href, title: "the history of this message" }, name)] };
}

function why(letter) {
  const cause = letter.cause === null ? "" : `, ${letter.cause.replace(/^handler: /, "")}`;
  return `${letter.reason}${cause}${letter.cannot_redrive ? ` (${letter.cannot_redrive})` : ""}`;
}

function handled({ handling }) {
  if (!handling) return "";
  const how = handling.to ? `${handling.action} to the ${handling.to}` : handling.action;
  return `${how} ${moment(handling.at_ms)} by ${handling.by}${handling.comment ? `: ${handling.comment}` : ""}`;
}
