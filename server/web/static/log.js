// The log of a job: follows it, keeps the page small, links lines, steps through what was found.
(() => {
  const log = document.getElementById("log");
  if (!log) return;
  const MOST = 5000; // lines that stay in the page
  const byId = (id) => document.getElementById(id);
  const following = byId("following"), ended = byId("log-end"), jump = byId("jump");
  const query = new URLSearchParams(location.search);
  log.classList.add("scripted");

  // -- lines

  const row = (number) => byId(`L${number}`);
  const numberOf = (element) => Number(element.id.slice(1));
  let chosen = [0, 0], anchor = 0;

  function choose(first, last) {
    for (const one of log.querySelectorAll(".chosen")) one.classList.remove("chosen");
    chosen = [first, last];
    for (let one = row(first); one && numberOf(one) <= last; one = one.nextElementSibling) one.classList.add("chosen");
  }
  // Only the box is scrolled, not the page.
  function into(box, one) {
    box.scrollTop += one.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientHeight / 3;
  }
  function show(number) {
    const one = row(number);
    if (!one) return false;
    stay();
    into(log, one);
    return true;
  }
  function fromAddress() {
    const found = /^#L(\d+)(?:-L?(\d+))?$/.exec(location.hash);
    if (!found) return false;
    const ends = [Number(found[1]), Number(found[2] ?? found[1])].sort((a, b) => a - b);
    if (show(ends[0])) {
      choose(...ends);
    } else if (query.get("line") !== String(ends[0])) {
      query.set("line", ends[0]);
      for (const name of ["from", "to"]) query.delete(name);
      location.replace(`${location.pathname}?${query}${location.hash}`);
    }
    return true;
  }
  log.addEventListener("click", (event) => {
    const link = event.target.closest(".n");
    if (!link || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    pick(numberOf(link.parentElement), event.shiftKey);
  });
  // To the lines that are marked; without any, to the page.
  function address() {
    const [first, last] = chosen;
    if (!first) return new URL(location.href);
    const to = new URL(log.dataset.here, location.href);
    if (query.get("search")) to.searchParams.set("search", query.get("search"));
    to.searchParams.set("line", first);
    to.hash = first === last ? `L${first}` : `L${first}-L${last}`;
    return to;
  }
  function pick(number, further, focus = false) {
    if (!further || !chosen[0]) anchor = number;
    else if (anchor < chosen[0] || anchor > chosen[1]) anchor = chosen[0];
    choose(Math.min(anchor, number), Math.max(anchor, number));
    stay();
    history.replaceState(null, "", address());
    if (focus) row(number).querySelector(".n").focus();
  }
  log.addEventListener("keydown", (event) => {
    const by = { ArrowUp: -1, ArrowDown: 1 }[event.key], link = event.target.closest(".n");
    if (!by || !link || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const number = numberOf(link.parentElement) + by;
    if (row(number)) pick(number, event.shiftKey, true);
  });
  byId("go-to").addEventListener("submit", (event) => {
    const number = Number(event.target.elements.line.value);
    if (!show(number)) return; // the server has it
    event.preventDefault();
    pick(number, false, true);
  });
  addEventListener("hashchange", fromAddress);

  const copy = byId("copy-link");
  copy?.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(address().href);
      copy.textContent = "Copied";
    } catch { // not allowed on plain http
      copy.textContent = "See the address bar";
    }
    setTimeout(() => { copy.textContent = "Copy link"; }, 2000);
  });

  // -- where it is scrolled to

  const box = byId("follow");
  let top = 0;
  const atEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  const more = Boolean(document.querySelector("[data-later]"));
  function toEnd() {
    log.scrollTop = log.scrollHeight;
    top = log.scrollTop;
  }
  function stay() {
    if (box) box.checked = false;
  }
  log.addEventListener("scroll", () => {
    const up = log.scrollTop < top - 2;
    top = log.scrollTop;
    if (box && atEnd() && !up) box.checked = true;
    else if (box && up && !atEnd()) box.checked = false;
    jump.hidden = atEnd() && !more;
    if (box?.checked) resume();
  }, { passive: true });
  jump.firstElementChild.addEventListener("click", () => {
    if (more) {
      location.assign(log.dataset.here);
      return;
    }
    if (box) box.checked = true;
    toEnd();
    resume();
  });
  box?.addEventListener("change", () => {
    if (!box.checked) return;
    toEnd();
    resume();
  });

  // -- what comes

  let events, next, timer, wait = 1000, done = !log.dataset.follow, paused = false;
  const say = (text) => { if (following) following.textContent = text; };

  function add(data) {
    const { html, first, next: place } = JSON.parse(data);
    next = place;
    byId("no-log")?.remove();
    log.hidden = false;
    while (log.lastElementChild && numberOf(log.lastElementChild) >= first) log.lastElementChild.remove();
    const part = document.createElement("template");
    part.innerHTML = html;
    log.append(part.content);
    if (chosen[0]) choose(...chosen);
    if (box?.checked) {
      while (log.childElementCount > MOST) log.firstElementChild.remove();
      earlier();
      toEnd();
    } else if (log.childElementCount > 2 * MOST) {
      paused = true; // what is being read stays; the rest comes when the end is wanted
      events.close();
      say("Paused: follow to go on.");
    }
    jump.hidden = atEnd();
  }
  function earlier() {
    const first = log.firstElementChild ? numberOf(log.firstElementChild) : 1;
    if (first <= 1) return;
    let place = byId("earlier");
    if (!place) {
      place = document.createElement("p");
      place.id = "earlier";
      place.className = "more-lines";
      place.append(document.createElement("a"), " ", document.createElement("span"));
      place.firstChild.textContent = "Earlier lines";
      place.lastChild.className = "muted";
      log.before(place);
    }
    place.firstElementChild.href = `${log.dataset.here}to=${first - 1}`;
    place.lastElementChild.textContent = `before line ${first.toLocaleString("en")}`;
  }
  function connect() {
    clearTimeout(timer);
    if (done || document.hidden) return;
    const from = new URL(log.dataset.follow, location.href);
    if (next) {
      from.searchParams.set("offset", next.offset);
      from.searchParams.set("first", next.first);
    }
    events = new EventSource(from);
    events.onopen = () => {
      wait = 1000;
      say("Following…");
    };
    events.addEventListener("rows", (event) => add(event.data));
    events.addEventListener("end", (event) => {
      done = true;
      events.close();
      ended.textContent = JSON.parse(event.data).text;
      ended.hidden = false;
      following.hidden = true;
      box.parentElement.hidden = true;
    });
    events.onerror = () => { // from the place that was reached, not from where it began
      events.close();
      say("The server cannot be reached. Trying again…");
      timer = setTimeout(connect, wait);
      wait = Math.min(2 * wait, 10000);
    };
  }
  function resume() {
    if (!paused) return;
    paused = false;
    connect();
  }
  document.addEventListener("visibilitychange", () => {
    if (!events || done || paused) return;
    events.close();
    connect();
  });
  addEventListener("pagehide", () => events?.close());
  addEventListener("pageshow", (event) => { if (event.persisted && !paused) connect(); });

  // -- what was found

  const matches = [...document.querySelectorAll("#matches a")];
  let current = matches.findIndex((one) => one.dataset.line === (query.get("line") ?? matches[0]?.dataset.line));
  function mark() {
    for (const one of document.querySelectorAll("#matches [data-current]")) delete one.dataset.current;
    const one = matches[current]?.parentElement;
    if (!one) return;
    one.dataset.current = "";
    into(byId("matches"), one);
  }
  function step(by) {
    if (!matches.length) return;
    current = (current + by + matches.length) % matches.length;
    const link = matches[current], number = Number(link.dataset.line);
    if (show(number)) {
      choose(number, number);
      history.replaceState(null, "", link.href);
      mark();
    } else {
      location.assign(link.href);
    }
  }
  byId("next")?.addEventListener("click", () => step(1));
  byId("previous")?.addEventListener("click", () => step(-1));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, select, textarea")) return;
    if (event.key === "n") step(1);
    if (event.key === "N") step(-1);
  });
  byId("matches")?.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || !row(link.dataset.line)) return;
    event.preventDefault();
    current = matches.indexOf(link) - 1;
    step(1);
  });
  const text = query.get("search")?.toLowerCase();
  if (text && window.Highlight && CSS.highlights) {
    const all = new Highlight();
    for (const one of log.querySelectorAll(".hit .t")) {
      const nodes = [], walker = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
      let whole = "";
      for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        nodes.push([whole.length, node]);
        whole += node.data;
      }
      const small = whole.toLowerCase();
      if (small.length !== whole.length) continue; // places would be others
      const place = (at) => {
        const [start, node] = nodes.findLast(([start]) => start <= at);
        return [node, at - start];
      };
      for (let at = small.indexOf(text); at >= 0; at = small.indexOf(text, at + text.length)) {
        const range = document.createRange();
        range.setStart(...place(at));
        range.setEnd(...place(at + text.length));
        all.add(range);
      }
    }
    CSS.highlights.set("search", all);
  }

  // -- beginning

  const wrap = byId("wrap"), remembered = "ferryman-log-wrap";
  try {
    wrap.checked = localStorage.getItem(remembered) !== "no";
    wrap.addEventListener("change", () => localStorage.setItem(remembered, wrap.checked ? "yes" : "no"));
  } catch { /* not kept, then */ }
  if (following && !done) following.hidden = false;
  const linked = fromAddress();
  if (!linked && current >= 0 && show(Number(matches[current].dataset.line))) {
    choose(Number(matches[current].dataset.line), Number(matches[current].dataset.line));
  } else if (!linked && query.get("line") && show(Number(query.get("line")))) {
    choose(Number(query.get("line")), Number(query.get("line")));
  } else if (!linked && !more && !query.get("to")) {
    toEnd();
  }
  mark();
  jump.hidden = atEnd() && !more;
  if (document.querySelector("[data-again]")) setTimeout(() => location.reload(), 800);
  connect();
})();
