// The list of jobs: filters act while one types, changes are put into the rows that are there, and
// what was ticked stays ticked.
(() => {
  const again = document.querySelector("form[data-goes-on]");
  if (again) again.requestSubmit();
  const filters = document.getElementById("filters");
  if (!filters) return;
  const list = () => document.getElementById("list");
  const table = () => document.querySelector("table.jobs");
  const rows = (body) => [...body.querySelectorAll("tr[data-id]")];
  const id = (row) => Number(row.dataset.id);
  const LIVE_MS = 1000;
  const chosen = new Set(); // numbers of the rows that are ticked
  let address = location.href, generation = 0;

  async function fetched(url) {
    const answer = await fetch(url, { headers: { Accept: "text/html, application/xhtml+xml", "HX-Request": "true" } });
    if (answer.status === 401) location.reload(); // the session has ended: to the login
    if (!answer.ok && answer.status !== 400) throw new Error(String(answer.status));
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }
  function replace(found) {
    list().replaceChildren(...found.getElementById("list").children);
    begin();
  }

  // -- filters

  let typing;
  async function show() {
    const url = new URL(filters.action);
    for (const [name, text] of new FormData(filters)) if (text.trim()) url.searchParams.set(name, text.trim());
    const mine = ++generation;
    let found;
    try { found = await fetched(url); } catch { return; } // the connection's own notice says it
    if (mine !== generation) return; // something else was typed meanwhile
    address = url.href;
    history.replaceState(null, "", url);
    for (const field of filters.querySelectorAll("input, select")) {
      const now = field.name && found.querySelector(`#filters [name="${CSS.escape(field.name)}"][aria-invalid]`);
      for (const [name, value] of [["aria-invalid", "true"], ["aria-describedby", "problem"]]) {
        now ? field.setAttribute(name, value) : field.removeAttribute(name);
      }
    }
    chosen.clear();
    replace(found);
  }
  const soon = (ms) => { clearTimeout(typing); typing = setTimeout(show, ms); };
  filters.addEventListener("input", (event) => soon(event.target.tagName === "SELECT" ? 0 : 300));
  filters.addEventListener("submit", (event) => { event.preventDefault(); soon(0); });

  // -- changes

  // Relative times go on by themselves.
  const plain = (cell) => cell.innerHTML.replace(/(<time[^>]*>)[^<]*/g, "$1");
  function renew(row, fresh) {
    [...fresh.children].forEach((cell, n) => {
      const old = row.children[n];
      if (old.classList.contains("tick") || plain(old) === plain(cell)) return;
      const focus = [...old.querySelectorAll("a")].indexOf(document.activeElement);
      old.replaceChildren(...cell.childNodes);
      if (focus >= 0) old.querySelectorAll("a")[focus]?.focus({ preventScroll: true });
    });
  }
  // Make the table what was read. A row that has the focus stays, even if it is in no list now.
  function put(fresh) {
    const body = table().tBodies[0], kept = new Map(rows(body).map((row) => [id(row), row]));
    let behind = null;
    for (const row of rows(fresh)) {
      const old = kept.get(id(row)), here = old ?? row;
      if (old) renew(old, row);
      else row.classList.add("fresh");
      if ((behind ? behind.nextElementSibling : body.firstElementChild) !== here) behind ? behind.after(here) : body.prepend(here);
      behind = here;
      kept.delete(id(row));
    }
    for (const row of kept.values()) if (!row.contains(document.activeElement)) row.remove();
    ticks();
  }

  let busy = false, wanted = false;
  async function changes() {
    if (busy) { wanted = true; return; }
    busy = true;
    const asked = address;
    try {
      const url = new URL(asked);
      for (const name of ["done", "number"]) url.searchParams.delete(name);
      const found = await fetched(url);
      if (asked === address) take(found); // no other list was asked for meanwhile
    } catch { // the connection's own notice says it
    } finally {
      setTimeout(() => { busy = false; if (wanted) { wanted = false; changes(); } }, LIVE_MS);
    }
  }
  function take(found, at_top = !table() || table().getBoundingClientRect().top >= 0) {
    const tabs = document.getElementById("tabs"), now = found.getElementById("tabs");
    if (tabs && now && !tabs.contains(document.activeElement) && tabs.innerHTML !== now.innerHTML) tabs.replaceChildren(...now.children);
    const fresh = found.querySelector("table.jobs tbody");
    if (!table() || !fresh) { // the first job, or the last one is gone
      if (Boolean(table()) !== Boolean(fresh) && !list().contains(document.activeElement)) replace(found);
      return;
    }
    const known = new Map(rows(table()).map((row) => [id(row), row]));
    const coming = rows(fresh).filter((row) => !known.has(id(row))), button = document.getElementById("new-jobs");
    button.hidden = at_top || !coming.length;
    if (button.hidden) {
      put(fresh);
      document.getElementById("older").replaceWith(found.getElementById("older"));
    } else { // somebody reads further down: what is there stays in its place
      button.textContent = coming.length === 1 ? "1 new job" : `${coming.length}${coming.length === rows(fresh).length ? " or more" : ""} new jobs`;
      for (const row of rows(fresh)) if (known.has(id(row))) renew(known.get(id(row)), row);
    }
  }
  document.addEventListener("click", async (event) => {
    if (event.target.id !== "new-jobs") return;
    const found = await fetched(address);
    scrollTo({ top: 0 });
    take(found, true);
  });
  document.body.addEventListener("live", changes);

  // -- selection

  const boxes = () => [...(table()?.querySelectorAll("tbody .tick input") ?? [])];
  function choose(box, checked) {
    const row = box.closest("tr");
    box.checked = checked;
    row.classList.toggle("chosen", checked);
    checked ? chosen.add(id(row)) : chosen.delete(id(row));
  }
  function ticks() {
    const form = document.getElementById("bulk");
    if (!form) return;
    for (const box of boxes()) if (chosen.has(id(box.closest("tr")))) choose(box, true);
    const every = form.elements.all.checked;
    const text = every ? "" : chosen.size ? `${chosen.size.toLocaleString("en")} chosen` : "";
    const says = document.getElementById("selected");
    if (says.textContent !== text) says.textContent = text;
    for (const button of form.querySelectorAll("button")) button.disabled = !every && !chosen.size;
    const all = document.getElementById("tick-page");
    all.checked = boxes().length > 0 && boxes().every((box) => box.checked);
    all.indeterminate = !all.checked && boxes().some((box) => box.checked);
  }
  let last = null;
  document.addEventListener("click", (event) => { // with the shift key: all from the last one on
    const box = event.target.closest?.("tbody .tick input");
    if (!box) return;
    const [a, b] = [boxes().indexOf(last), boxes().indexOf(box)].sort((one, other) => one - other);
    if (event.shiftKey && a >= 0) for (const one of boxes().slice(a, b + 1)) choose(one, box.checked);
    last = box;
  });
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.id === "tick-page") for (const one of boxes()) choose(one, box.checked);
    else if (box.matches("tbody .tick input")) choose(box, box.checked);
    if (box.closest(".tick, #bulk")) ticks();
  });
  document.addEventListener("submit", (event) => { // those that have left the page since, too
    if (event.target.id !== "bulk") return;
    const there = new Set(rows(table()).map(id));
    event.target.elements.ids.value = [...chosen].filter((number) => !there.has(number)).join();
  });
  addEventListener("pageshow", () => { // the browser keeps what was ticked
    for (const box of boxes()) if (box.checked) choose(box, true);
    ticks();
  });

  function begin() {
    for (const one of document.querySelectorAll("#list [data-script]")) one.hidden = false;
    ticks();
  }
  begin();
})();
