// Rates and times of micro-batches over the last ten minutes.

import { get } from "./api.js";
import { Table, chart, element } from "./dom.js";
import { clock, decimal } from "./format.js";

const RECENT = 30;

export class MicroBatches {
  constructor(section) {
    this.rate = section.querySelector("#rate-chart");
    this.time = section.querySelector("#time-chart");
    this.steps = new Table(
      section.querySelector("#steps"),
      [
        { label: "Step", of: ([step]) => step },
        { label: "Now", num: true, of: ([, now]) => decimal(now) },
        { label: "Mean of a minute", num: true, of: ([, , mean]) => decimal(mean) },
        { label: "Most in 10 minutes", num: true, of: ([, , , most]) => decimal(most) },
      ],
      "no micro-batch yet",
    );
  }

  async refresh() {
    const points = await get("rates");
    const rates = points.map((point) => point.operations_per_s);
    const busy = points.filter((point) => point.micro_batches);
    const total = (point) => Object.values(point.step_ms).reduce((sum, ms) => sum + ms, 0);
    draw(this.rate, "Operations per second", rates, points, "/s");
    draw(this.time, "Milliseconds per micro-batch", busy.map(total), busy, " ms");
    const names = [...new Set(busy.flatMap((point) => Object.keys(point.step_ms)))];
    const recent = busy.slice(-RECENT);
    const count = recent.reduce((sum, point) => sum + point.micro_batches, 0);
    const rows = names.map((name) => {
      const of = (point) => point.step_ms[name] ?? 0;
      const mean = recent.reduce((sum, point) => sum + of(point) * point.micro_batches, 0) / Math.max(1, count);
      return [name, of(busy.at(-1)), mean, Math.max(...busy.map(of))];
    });
    this.steps.show(rows);
  }
}

function draw(figure, title, values, points, unit) {
  const last = values.length ? `${decimal(values.at(-1))}${unit}` : "none yet";
  const most = values.length ? `most ${decimal(Math.max(...values))}${unit}` : "";
  const head = element("figcaption", { class: "row" }, element("h3", {}, title), element("span", { class: "dim small push" }, most));
  const ends = element(
    "div",
    { class: "ends dim small" },
    element("span", {}, points.length ? clock(points[0].at_ms) : ""),
    element("span", {}, points.length ? clock(points.at(-1).at_ms) : ""),
  );
  figure.replaceChildren(head, element("div", { class: "now" }, last), chart(values), ends);
}
