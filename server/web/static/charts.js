// Draws each chart from the table beside it: there is one set of numbers. Without this, the tables
// are what is there.
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const plots = new Map(); // id of a chart -> what is drawn
  const open = new Set(); // ids of those whose table is open
  const names = { primary: "--pico-primary" };
  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(names[name] ?? `--${name}`).trim();

  const say = {
    number: (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : 1 }),
    seconds: (value) => {
      if (!value) return "0 s";
      if (value < 1) return `${+(value * 1000).toPrecision(3)} ms`;
      const [unit, word] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([unit]) => value >= unit);
      return `${+(value / unit).toPrecision(3)} ${word}`;
    },
  };
  const two = (number) => String(number).padStart(2, "0");
  const months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ");
  const date = (at) => `${at.getDate()} ${months[at.getMonth()]}`;
  const time = (at) => `${two(at.getHours())}:${two(at.getMinutes())}`;
  const moment = (seconds) => {
    const at = new Date(seconds * 1000);
    return `${date(at)} ${time(at)}`;
  };
  const short = (seconds) => {
    const at = new Date(seconds * 1000);
    return at.getHours() || at.getMinutes() ? time(at) : date(at);
  };

  // The numbers of a table, oldest first; a time that is missing is a gap in every line.
  const numbers = (chart, resolution) => {
    const heads = [...chart.querySelectorAll("thead th.number")];
    const lines = heads.map((head, at) => ({ at, label: head.textContent, ...head.dataset })).filter((one) => one.shape);
    const data = [[], ...lines.map(() => [])];
    for (const row of [...chart.querySelectorAll(".table tbody tr")].reverse()) {
      const at = Number(row.querySelector("[data-at]").dataset.at);
      const before = data[0].at(-1);
      if (before !== undefined && at - before > 1.5 * resolution) {
        data[0].push(before + resolution);
        data.slice(1).forEach((line) => line.push(null));
      }
      data[0].push(at);
      const cells = row.querySelectorAll("td");
      lines.forEach((line, n) => {
        const value = cells[line.at].dataset.value;
        data[n + 1].push(value === undefined ? null : Number(value));
      });
    }
    return { lines, data };
  };
  // Bars on top of one another: each reaches as high as itself and all after it.
  const stacked = (lines, data) => data.map((line, n) => n === 0 || lines[n - 1].shape !== "bar" ? line
    : line.map((value, at) => value === null ? null
      : data.slice(n).reduce((sum, other, m) => lines[n + m - 1].shape === "bar" ? sum + other[at] : sum, 0)));

  const height = 160;
  const increments = {
    number: Array.from({ length: 12 }, (_, n) => 10 ** n).flatMap((one) => [one, 2 * one, 5 * one]),
    seconds: [...[-3, -2, -1].flatMap((n) => [1, 2, 5].map((one) => one * 10 ** n)), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
      1800, 3600, 7200, 14400, 28800, 43200, 86400, 172800, 432000, 864000],
  };
  const shapes = { bar: () => uPlot.paths.bars({ size: [0.86, 60], align: 1 }), steps: () => uPlot.paths.stepped({ align: 1 }), line: () => undefined };
  const draw = (chart, resolution, span, until) => {
    const place = chart.querySelector(".plot");
    const { lines, data } = numbers(chart, resolution);
    const grid = { stroke: colour("pico-muted-border-color"), width: 1 };
    const font = `12px ${getComputedStyle(document.body).fontFamily}`;
    const write = say[chart.dataset.unit];
    const axis = { stroke: colour("pico-muted-color"), grid, ticks: { ...grid, size: 4 }, font };
    place.replaceChildren();
    return new uPlot({
      width: place.clientWidth,
      height,
      padding: [8, 16, 0, 0],
      cursor: { sync: { key: "charts" }, points: { size: 7 }, drag: { x: false, y: false } },
      scales: {
        x: { range: () => [Math.min(until - span, data[0][0] ?? until), until] },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.06 : 1] },
      },
      axes: [
        { ...axis, size: 34, space: 60, values: (_, splits) => splits.map(short) },
        { ...axis, size: 70, space: 34, incrs: increments[chart.dataset.unit], values: (_, splits) => splits.map((value) => value === null ? "" : write(value)) },
      ],
      series: [
        { label: "Time", value: (_, at) => at === null ? "latest" : moment(at) },
        ...lines.map((line, n) => ({
          label: line.label,
          stroke: colour(line.colour),
          fill: line.shape === "bar" ? colour(line.colour) : n === 0 && lines.length < 3 ? `${colour(line.colour)}22` : undefined,
          width: line.shape === "bar" ? 0 : 1.7,
          paths: shapes[line.shape](),
          points: { show: line.shape === "line" && data[n + 1].some((one, at, all) => one !== null && (all[at - 1] ?? null) === null && (all[at + 1] ?? null) === null), size: 4 },
          value: (_, __, ___, index) => {
            const values = data[n + 1];
            const value = index === null ? values.findLast((one) => one !== null) : values[index];
            return value === null || value === undefined ? "–" : write(value);
          },
        })),
      ],
    }, stacked(lines, data), place);
  };

  const latest = (root) => Math.max(0, ...[...root.querySelectorAll(".table [data-at]")].map((one) => Number(one.dataset.at)));

  const all = () => {
    const root = document.querySelector("#charts");
    if (!root) return;
    const resolution = Number(root.dataset.resolution);
    for (const chart of root.querySelectorAll(".chart:has(.plot)")) {
      plots.get(chart.id)?.destroy();
      plots.set(chart.id, draw(chart, resolution, Number(root.dataset.span), Math.max(Number(root.dataset.until), latest(root) + resolution)));
      const details = chart.querySelector("details");
      details.open = open.has(chart.id);
      for (const at of chart.querySelectorAll(".table [data-at]")) at.textContent = moment(at.dataset.at);
      for (const zone of chart.querySelectorAll(".zone")) zone.hidden = true;
    }
    root.dataset.drawn = "";
  };

  document.addEventListener("click", (event) => {
    const details = event.target.closest(".chart summary")?.parentElement;
    if (details) open[details.open ? "delete" : "add"](details.closest(".chart").id);
  });
  dark.addEventListener("change", all);
  document.addEventListener("htmx:after:swap", all);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone hides its bars
    width = innerWidth;
    for (const [id, plot] of plots) {
      const place = document.getElementById(id)?.querySelector(".plot");
      if (place) plot.setSize({ width: place.clientWidth, height });
    }
  });
  all();
})();
