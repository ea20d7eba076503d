// The list of jobs: filters act while one types, older pages come when the end is in view, far ones
// leave the document until one is back, and changes are put into the rows that are looked at.
(() => {
  const again = document.querySelector("form[data-goes-on]");
  if (again) again.requestSubmit();
  const filters = document.getElementById("filters");
  if (!filters) return;
  const list = () => document.getElementById("list");
  const table = () => document.querySelector("table.jobs");
  const bulk = () => document.getElementById("bulk");
  const rows = (body) => [...body.querySelectorAll("tr[data-id]")];
  const id = (row) => Number(row.dataset.id);
  const end = (body) => Number(body.dataset.to || 0); // all of its jobs have this number or a higher one
  const FAR = "1200px 0px", MOUNTED = 8, LIVE_MS = 1000, MOST_ALONE = 10;
  const chosen = new Set(); // numbers of the rows that are ticked, also of those that are out of the document
  let address = location.href, generation = 0;

  async function fetched(url) {
    const answer = await fetch(url, { headers: { Accept: "text/html, application/xhtml+xml" } });
    if (answer.redirected) location.reload(); // the session has ended: to the login
    if (answer.redirected || (!answer.ok && answer.status !== 400)) throw new Error(String(answer.status));
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }
  const page = (cursor) => {
    const url = new URL(address);
    for (const name of ["done", "number"]) url.searchParams.delete(name);
    cursor ? url.searchParams.set("cursor", cursor) : url.searchParams.delete("cursor");
    return url;
  };

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
    list().replaceChildren(...found.getElementById("list").children);
    begin();
  }
  const soon = (ms) => { clearTimeout(typing); typing = setTimeout(show, ms); };
  filters.addEventListener("input", (event) => soon(event.target.tagName === "SELECT" ? 0 : 300));
  filters.addEventListener("submit", (event) => { event.preventDefault(); soon(0); });

  // -- rows as they are now

  function renew(row, fresh) {
    const cells = row.children, now = fresh.children;
    if (cells.length !== now.length) { row.replaceWith(fresh); return; }
    [...now].forEach((cell, n) => {
      const old = cells[n];
      if (old.classList.contains("tick") || plain(old) === plain(cell)) return;
      const focus = [...old.querySelectorAll("a")].indexOf(document.activeElement);
      old.replaceChildren(...cell.childNodes);
      if (focus >= 0) old.querySelectorAll("a")[focus]?.focus({ preventScroll: true });
    });
  }
  // Relative times go on by themselves.
  const plain = (cell) => cell.innerHTML.replace(/(<time[^>]*>)[^<]*/g, "$1");

  // Make the rows of a part what was read, as far down as it was read, and from below the number that
  // was asked for: meanwhile newer rows may have been moved into this part.
  function put(body, fresh, from = Infinity) {
    const to = Math.max(end(body), end(fresh)), kept = new Map(rows(body).map((row) => [id(row), row]));
    const added = [];
    let behind = rows(body).filter((row) => id(row) >= from).at(-1) ?? null;
    for (const row of rows(fresh)) {
      if (id(row) < end(body) || id(row) >= from) continue;
      const old = kept.get(id(row));
      if (old) renew(old, row); else { tick(row); added.push(row); }
      const here = old?.isConnected ? old : (old ? body.querySelector(`#${CSS.escape(row.id)}`) : row);
      if (behind ? behind.nextElementSibling !== here : body.firstElementChild !== here) behind ? behind.after(here) : body.prepend(here);
      behind = here;
      kept.delete(id(row));
    }
    for (const [number, row] of kept) if (number >= to && number < from && !row.contains(document.activeElement)) row.remove();
    return added;
  }

  // -- pages

  const near = new Set();
  let pages, bottom;
  function begin() {
    near.clear();
    pages?.disconnect();
    bottom?.disconnect();
    pages = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) {
        isIntersecting ? near.add(target) : near.delete(target);
        if (isIntersecting && target.dataset.out) mount(target);
      }
      for (const body of table()?.tBodies ?? []) if (!near.has(body) && table().tBodies.length > MOUNTED) unmount(body);
    }, { rootMargin: FAR });
    bottom = new IntersectionObserver((seen) => { if (seen.some((one) => one.isIntersecting)) older(); }, { rootMargin: FAR });
    for (const body of table()?.tBodies ?? []) pages.observe(body);
    const link = document.getElementById("older");
    if (link) bottom.observe(link);
    alone = 0;
    newest = Math.max(0, ...[...(table()?.tBodies ?? [])].flatMap(rows).map(id));
    for (const one of document.querySelectorAll("#list [data-script]")) one.hidden = false;
    selection();
  }
  let newest = 0, alone = 0, reading = false;

  async function older(asked = false) {
    const link = document.querySelector("#older a");
    if (!link || reading) return;
    if ("slow" in link.dataset && !asked && ++alone > MOST_ALONE) return; // then only when it is asked for
    reading = true;
    const mine = generation;
    try {
      const found = await fetched(link.href);
      if (mine !== generation || !link.isConnected) return;
      const body = found.querySelector("table.jobs tbody");
      if (body && !table()) { // the first jobs of a long search
        list().replaceChildren(...found.getElementById("list").children);
        begin();
        return;
      }
      document.getElementById("older").replaceWith(found.getElementById("older"));
      bottom.disconnect();
      if (body) {
        rows(body).forEach(tick);
        table().append(body);
        pages.observe(body);
        alone = 0;
      }
      selection();
    } catch { // with the next scroll
    } finally {
      reading = false;
      const more = document.getElementById("older");
      if (more && !more.hidden) { bottom.unobserve(more); bottom.observe(more); }
    }
  }
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#older a") || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    alone = 0;
    older(true);
  });

  function unmount(body) {
    if (body.dataset.out || !rows(body).length || body.contains(document.activeElement)) return;
    const row = document.createElement("tr"), cell = row.insertCell();
    row.className = "gap";
    row.setAttribute("aria-hidden", "true");
    cell.colSpan = table().tHead.rows[0].cells.length;
    cell.style.height = `${body.getBoundingClientRect().height}px`;
    body.dataset.out = rows(body)[0].dataset.id;
    body.replaceChildren(row);
  }
  async function mount(body) {
    const first = Number(body.dataset.out), mine = generation, from = Number(body.dataset.from) || first + 1;
    body.dataset.out = "";
    try {
      const fresh = (await fetched(page(from))).querySelector("table.jobs tbody");
      if (mine !== generation || !body.isConnected) return;
      const gap = body.querySelector(".gap");
      if (fresh) put(body, fresh, from);
      gap?.remove();
    } catch { body.dataset.out = first; }
  }

  // -- changes

  let busy = false, wanted = false;
  async function changes() {
    if (busy) { wanted = true; return; }
    busy = true;
    const mine = generation;
    try {
      const top = await fetched(page(new URL(address).searchParams.get("cursor")));
      if (mine !== generation) return;
      counts(top);
      await parts(top, mine);
    } catch { // the connection's own notice says it
    } finally {
      setTimeout(() => { busy = false; if (wanted) { wanted = false; changes(); } }, LIVE_MS);
    }
  }
  async function parts(top, mine) {
    const fresh = top.querySelector("table.jobs tbody");
    if (!table() || !fresh) { // the first job, or the last one is gone
      if (Boolean(table()) !== Boolean(fresh) && !list().contains(document.activeElement)) {
        list().replaceChildren(...top.getElementById("list").children);
        begin();
      }
      return;
    }
    const first = table().tBodies[0];
    const coming = rows(fresh).filter((row) => id(row) > newest);
    const reading = table().getBoundingClientRect().top < 0; // something further down: it stays where it is
    if (coming.length && reading) {
      const button = document.getElementById("new-jobs");
      button.textContent = coming.length === 1 ? "1 new job" : `${coming.length}${coming.length === rows(fresh).length ? " or more" : ""} new jobs`;
      button.hidden = false;
    } else if (coming.length) {
      await newer(top);
    } else if (near.has(first) && !first.dataset.out) put(first, fresh);
    for (const body of [...near]) {
      if (body.dataset.out || (body === first && !(coming.length && reading))) continue;
      const from = body === first ? newest + 1 : Number(body.dataset.from);
      const part = (await fetched(page(from))).querySelector("table.jobs tbody");
      if (mine !== generation) return;
      if (part && body.isConnected && !body.dataset.out) put(body, part, from);
    }
  }
  // What was read now reaches down to its end; what was there below it stays, as a part of its own.
  async function newer(top) {
    const fresh = top.querySelector("table.jobs tbody"), first = table().tBodies[0];
    const cut = end(fresh), known = rows(first).some((row) => id(row) >= cut);
    document.getElementById("new-jobs").hidden = true;
    if (!known || first.dataset.out) { // more came than a page holds
      list().replaceChildren(...top.getElementById("list").children);
      begin();
      return;
    }
    const below = rows(first).filter((row) => id(row) < cut);
    if (below.length) {
      let second = table().tBodies[1];
      if (!second || second.dataset.out || rows(second).length + below.length > 60) {
        const part = document.createElement("tbody");
        part.dataset.to = first.dataset.to;
        first.after(part);
        pages.observe(part);
        second = part;
      }
      second.dataset.from = cut;
      second.prepend(...below);
    }
    if (cut > end(first)) first.dataset.to = cut;
    for (const row of put(first, fresh)) row.classList.add("fresh");
    newest = Math.max(newest, ...rows(first).map(id));
    selection();
  }
  function counts(top) {
    const tabs = document.getElementById("tabs"), now = top.getElementById("tabs");
    if (!tabs || !now || tabs.contains(document.activeElement)) return;
    if (tabs.innerHTML !== now.innerHTML) tabs.replaceChildren(...now.children);
  }
  document.addEventListener("click", async (event) => {
    if (event.target.id !== "new-jobs") return;
    const top = await fetched(page(null));
    scrollTo({ top: 0 });
    await newer(top);
  });
  document.body.addEventListener("live", changes);

  // -- selection

  function tick(row) {
    const box = row.querySelector(".tick input");
    if (!box || !chosen.has(id(row))) return;
    box.checked = true;
    row.classList.add("chosen");
  }
  function selection() {
    const form = bulk();
    if (!form) return;
    const every = form.elements.all.checked;
    const text = every ? "" : chosen.size ? `${chosen.size.toLocaleString("en")} chosen` : "";
    const says = document.getElementById("selected");
    if (says.textContent !== text) says.textContent = text;
    for (const button of form.querySelectorAll("button")) button.disabled = !every && !chosen.size;
    const all = document.getElementById("tick-page"), boxes = [...table().querySelectorAll("tbody .tick input")];
    all.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    all.indeterminate = !all.checked && boxes.some((box) => box.checked);
  }
  let last = null;
  const choose = (box, checked) => {
    const row = box.closest("tr");
    box.checked = checked;
    row.classList.toggle("chosen", checked);
    checked ? chosen.add(id(row)) : chosen.delete(id(row));
  };
  document.addEventListener("click", (event) => { // with the shift key: all from the last one on
    const box = event.target.closest?.("tbody .tick input");
    if (!box) return;
    const boxes = [...table().querySelectorAll("tbody .tick input")];
    const [a, b] = [boxes.indexOf(last), boxes.indexOf(box)].sort((one, other) => one - other);
    if (event.shiftKey && a >= 0) for (const one of boxes.slice(a, b + 1)) choose(one, box.checked);
    last = box;
  });
  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.id === "tick-page") for (const one of table().querySelectorAll("tbody .tick input")) choose(one, box.checked);
    else if (box.matches("tbody .tick input")) choose(box, box.checked);
    if (box.closest(".tick, #bulk")) selection();
  });
  document.addEventListener("submit", (event) => { // those that are out of the document, too
    if (event.target.id !== "bulk") return;
    const there = new Set([...table().querySelectorAll("tr[data-id]")].map(id));
    event.target.elements.ids.value = [...chosen].filter((number) => !there.has(number)).join();
  });
  addEventListener("pageshow", () => { // the browser keeps what was ticked
    for (const box of document.querySelectorAll("tbody .tick input:checked")) choose(box, true);
    selection();
  });

  begin();
})();
