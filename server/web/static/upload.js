// The page that uploads: the files that were dropped or picked, what the server says to the fields, and
// the upload, which goes on until the server has it, under one key: whatever breaks, it becomes one job.
(() => {
  const part = (id) => document.getElementById(id);
  const form = part("upload");
  const service = part("f-service"), script = part("f-script"), expand = part("f-expand");
  const keep = form.elements.keep;
  const VERSION_CONTROL = new Set([".git", ".hg", ".svn"]);
  const FORMER_RESULT = /^job-[0-9]+(-partial|-children|-attempt-[0-9]+)?\.zip$/;
  const RECEIPT = "ferryman.json";
  const MAX_RECEIPT = 1 << 20;

  // -- what was dropped

  const file = (entry) => new Promise((good, bad) => entry.file(good, bad));

  async function children(folder) {
    const reader = folder.createReader(), found = [];
    for (;;) { // it gives some at a time
      const some = await new Promise((good, bad) => reader.readEntries(good, bad));
      if (!some.length) return found;
      found.push(...some);
    }
  }

  async function walk(entry, name, found) {
    if (entry.isFile) {
      found.push({ name, file: await file(entry) });
    } else {
      for (const one of await children(entry)) await walk(one, `${name}/${one.name}`, found);
    }
  }

  // Each folder or file by itself: {top, isFolder, files: [{name, file}]}; names begin with the top.
  // Entries are known only until the event is over: this function asks for them at once.
  function dropped(transfer) {
    const entries = [...transfer.items].filter((one) => one.kind === "file").map((one) => one.webkitGetAsEntry?.() ?? one.getAsFile());
    return Promise.all(entries.filter(Boolean).map(async (one) => {
      if (one instanceof File) return { top: one.name, isFolder: false, files: [{ name: one.name, file: one }] };
      const files = [];
      await walk(one, one.name, files);
      return { top: one.name, isFolder: one.isDirectory, files };
    }));
  }

  // The same of an input's files.
  function picked(list) {
    const tops = new Map();
    for (const one of list) {
      const name = one.webkitRelativePath || one.name, top = name.split("/")[0];
      if (!tops.has(top)) tops.set(top, { top, isFolder: name !== top, files: [] });
      tops.get(top).files.push({ name, file: one });
    }
    return [...tops.values()];
  }

  // -- what is left out of a folder

  async function formerResults(files) {
    const found = new Set();
    for (const { name, file } of files) {
      if (!name.endsWith(`/${RECEIPT}`) || file.size > MAX_RECEIPT) continue;
      try {
        const receipt = JSON.parse(await file.text());
        if (["format", "job", "attempt"].every((key) => key in receipt)) found.add(name.slice(0, -RECEIPT.length - 1));
      } catch { /* no receipt */ }
    }
    return found;
  }

  // files: [{name, file}], names relative to the folder. What is taken, and what is left out:
  // {taken, left, names}, with the topmost names of what is left out.
  async function choose(files) {
    const results = await formerResults(files), taken = [], left = [], names = new Set();
    for (const one of files) {
      const parts = one.name.split("/");
      const at = parts.findIndex((base, n) => VERSION_CONTROL.has(base) || (n < parts.length - 1 ? results.has(parts.slice(0, n + 1).join("/")) : FORMER_RESULT.test(base)));
      if (at >= 0) names.add(parts.slice(0, at + 1).join("/") + (at < parts.length - 1 ? "/" : ""));
      (at >= 0 ? left : taken).push(one);
    }
    return { taken, left, names: [...names] };
  }

  // -- their numbers

  function size(bytes) {
    if (bytes < 1024) return `${bytes} B`;
    for (const unit of ["KiB", "MiB", "GiB"]) {
      bytes /= 1024;
      if (bytes < 1024) return `${bytes.toFixed(1)} ${unit}`;
    }
    return `${(bytes / 1024).toFixed(1)} TiB`;
  }

  const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
  const isArchive = (name) => /\.(zip|tar|tar\.gz|tgz)$/i.test(name);
  // At the root, or in the one folder that may stand around all files.
  const isEntry = (name) => /^([^/]+\/)?run\.sh$/.test(name);

  const SHOWN = 200; // files of the list
  const chosen = new Map(); // name -> file
  let leftOut = [];

  // -- words beside the fields

  const sentence = (text) => {
    const whole = text ? text[0].toUpperCase() + text.slice(1) : "";
    return !whole || /[.!?]$/.test(whole) ? whole : `${whole}.`;
  };

  function tell(place, text) {
    if (!place) return;
    place.textContent = sentence(text);
    place.hidden = !text;
  }

  function tellError(name, text) {
    const place = part(`e-${name}`);
    if (!place) return false;
    tell(place, text);
    const input = part(`f-${name}`);
    if (text) input?.setAttribute("aria-invalid", "true");
    else input?.removeAttribute("aria-invalid");
    if (text) place.closest("details")?.setAttribute("open", "");
    return true;
  }

  // -- the files

  const names = () => [...chosen.keys()];
  const total = () => [...chosen.values()].reduce((sum, file) => sum + file.size, 0);
  const oneArchive = () => chosen.size === 1 && isArchive(names()[0]) && !script.value.trim();
  const expands = () => oneArchive() && expand.checked;
  const hasEntry = () => expands() || names().some(isEntry) || script.value.trim() !== "" || Boolean(keep?.checked);

  function row(name, file) {
    const line = document.createElement("li"), label = document.createElement("span"), bytes = document.createElement("span");
    const button = document.createElement("button");
    label.className = "file-name";
    label.textContent = name;
    bytes.className = "file-size";
    bytes.textContent = size(file.size);
    button.type = "button";
    button.className = "small quiet";
    button.textContent = "Remove";
    button.setAttribute("aria-label", `Remove ${name}`);
    button.addEventListener("click", () => {
      const next = line.nextElementSibling ?? line.previousElementSibling;
      chosen.delete(name);
      line.remove();
      show(false);
      (next?.querySelector("button") ?? part("f-file")).focus();
    });
    if (isEntry(name)) line.dataset.entry = "";
    line.dataset.name = name;
    line.append(label, bytes, button);
    return line;
  }

  function show(list = true) {
    part("chosen").hidden = !chosen.size && !leftOut.length;
    part("total").textContent = `${count(chosen.size, "file")}, ${size(total())}`;
    if (list) {
      const sorted = [...chosen].sort(([a], [b]) => isEntry(b) - isEntry(a) || (a < b ? -1 : 1));
      part("file-list").replaceChildren(...sorted.slice(0, SHOWN).map(([name, file]) => row(name, file)));
    }
    part("file-list").hidden = !chosen.size;
    tell(part("more"), chosen.size > SHOWN ? `And ${(chosen.size - SHOWN).toLocaleString("en")} more` : "");
    part("expand").hidden = !oneArchive();
    part("left-out").hidden = !leftOut.length;
    if (leftOut.length) {
      const tops = [...new Set(leftOut.flatMap((one) => one.names))];
      const more = tops.length > 5 ? ` and ${tops.length - 5} more` : "";
      part("left-out").querySelector("span").textContent = `Left out, ${count(leftOut.reduce((sum, one) => sum + one.left.length, 0), "file")}: ${tops.slice(0, 5).join(", ")}${more}.`;
    }
    part("ready").textContent = chosen.size || script.value.trim() ? `${count(chosen.size + (script.value.trim() && !names().some(isEntry) ? 1 : 0), "file")}, ${size(total() + script.value.length)}` : "";
    warn();
  }

  function warn() {
    const most = Number(service?.selectedOptions?.[0]?.dataset.most || form.dataset.mostBytes), words = [];
    if (chosen.size && !hasEntry()) words.push("There is no run.sh among the files: write one above, or add it.");
    if (script.value.trim() && names().some(isEntry)) words.push("A run.sh is among the files: what is written above is not used.");
    if (total() > most) words.push(`These are ${size(total())}; the most that may be sent is ${size(most)}.`);
    if (chosen.size > Number(form.dataset.mostFiles)) words.push(`These are ${count(chosen.size, "file")}; the most that may be sent is ${Number(form.dataset.mostFiles).toLocaleString("en")}.`);
    tell(part("warning"), words.join(" "));
  }

  async function add(groups) {
    tellError("file", "");
    for (const { top, isFolder, files } of groups) {
      let taken = files;
      if (isFolder) {
        const inside = files.map((one) => ({ ...one, name: one.name.slice(top.length + 1) }));
        // A folder by itself stands for what is in it, and so does one with a run.sh.
        const asRoot = groups.length === 1 && (!chosen.size || inside.some((one) => one.name === "run.sh"));
        const prefix = asRoot ? "" : `${top}/`;
        const found = await choose(inside);
        const named = (one) => ({ ...one, name: prefix + one.name });
        taken = found.taken.map(named);
        if (found.left.length) leftOut.push({ names: found.names.map((one) => prefix + one), left: found.left.map(named) });
      }
      for (const { name, file } of taken) chosen.set(name, file);
    }
    show();
  }

  const guarded = async (groups) => {
    try {
      await add(await groups);
    } catch (problem) {
      tellError("file", `The browser could not read what was chosen: ${problem.message}`);
    }
  };
  for (const input of [part("f-file"), part("f-folder"), part("f-archive")]) {
    input.addEventListener("change", () => {
      guarded(picked([...input.files]));
      input.value = ""; // they are in the list now
    });
  }
  const drop = part("drop");
  const hasFiles = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  addEventListener("dragover", (event) => {
    if (!hasFiles(event) || form.hidden) return;
    event.preventDefault(); // or the browser would open what is dropped beside the zone
    drop.classList.add("over");
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) drop.classList.remove("over"); });
  addEventListener("drop", (event) => {
    if (!hasFiles(event) || form.hidden) return;
    event.preventDefault();
    drop.classList.remove("over");
    guarded(dropped(event.dataTransfer));
  });
  part("clear").addEventListener("click", () => { chosen.clear(); leftOut = []; show(); part("f-file").focus(); });
  part("left-out").querySelector("button").addEventListener("click", () => {
    for (const { left } of leftOut) for (const { name, file } of left) chosen.set(name, file);
    leftOut = [];
    show();
  });
  expand.addEventListener("change", () => show(false));
  keep?.addEventListener("change", () => show(false));
  script.addEventListener("input", () => { tellError("script", ""); show(false); });
  part("use-example").addEventListener("click", () => {
    if (!script.value.trim()) script.value = part("example").content.textContent;
    script.focus();
    show(false);
  });

  // -- sending

  const FIRST_WAIT_S = 1, LONGEST_WAIT_S = 30;
  const RATE_MS = 8000; // the rate is that of so long
  let cancelled = false, abort = () => {}, wake = () => {}, uploading = false;
  const say = (text) => { part("sending-said").textContent = text; };

  function duration(seconds) {
    if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
    return `${Math.floor(seconds / 3600)} h ${Math.round(seconds % 3600 / 60)} min`;
  }

  class Cancelled extends Error {}

  // One try. {status, body, location, retryAfter}; status 0: the connection broke.
  function once(record, files, onBytes) {
    return new Promise((good, bad) => {
      const body = new FormData();
      for (const [name, value] of Object.entries(record.fields)) body.append(name, value);
      for (const { name, file } of files) body.append(record.expand ? "bundle" : "file", file, name);
      const request = new XMLHttpRequest();
      request.open("POST", form.action);
      request.setRequestHeader("Accept", "application/json");
      request.setRequestHeader("Idempotency-Key", record.key);
      request.upload.onprogress = (event) => onBytes(event.loaded, event.total);
      request.onerror = () => good({ status: 0 });
      request.onabort = () => bad(new Cancelled());
      request.onload = () => {
        let answer = {};
        try { answer = JSON.parse(request.responseText); } catch { /* a proxy's page */ }
        good({
          status: request.status,
          body: answer,
          location: request.getResponseHeader("Location"),
          retryAfter: Number(request.getResponseHeader("Retry-After")) || 0,
        });
      };
      abort = () => request.abort();
      request.send(body);
    });
  }

  // What the upload has become: {job, page}, or {job: null}; null: the server cannot be reached.
  async function become(record) {
    const query = new URLSearchParams({ key: record.key });
    if (record.fields.user_id) query.set("user", record.fields.user_id);
    try {
      const answer = await fetch(`${form.dataset.sent}?${query}`, { headers: { Accept: "application/json" } });
      return answer.ok ? await answer.json() : answer.status >= 500 ? null : { job: null };
    } catch {
      return null;
    }
  }

  // A file that was changed or removed since it was chosen cannot be read any more.
  async function unreadable(files) {
    for (const { name, file } of files) {
      try { await file.slice(0, 1).arrayBuffer(); } catch { return name; }
    }
    return null;
  }

  const worthAnother = (answer) => [0, 408, 502, 503, 504].includes(answer.status) || answer.body?.code === "too_many_uploads";

  // {page} of the job, or {refusal} of the server, or {unreadable: name}, or {cancelled: true}
  async function upload(record, files) {
    part("sending-what").textContent = `${count(files.length, "file")}, ${size(record.total)}, for the service ${record.fields.service}`;
    let tries = 0, waitS = FIRST_WAIT_S;
    const rest = async (why, leastS = 0) => {
      await pause(why, Math.max(waitS, leastS));
      waitS = Math.min(waitS * 2, LONGEST_WAIT_S);
    };
    cancelled = false;
    try {
      for (;;) {
        if (tries++ > 0) {
          const found = await become(record);
          if (cancelled) return { cancelled };
          if (found?.job) return { page: found.page };
          if (!found) {
            await rest("The server cannot be reached");
            continue;
          }
          const lost = await unreadable(files);
          if (lost !== null) return { unreadable: lost };
        }
        say(tries > 1 ? "Sending again, from the beginning. It stays one job." : "Sending.");
        let furthest = 0;
        const shows = progress();
        const answer = await once(record, files, (loaded, total) => {
          furthest = loaded / total;
          shows(loaded, total);
        });
        if (answer.status === 201) return { page: answer.location };
        if (!worthAnother(answer)) return { refusal: answer };
        if (furthest > 0.05) waitS = FIRST_WAIT_S; // it does get somewhere
        await rest(answer.status ? answer.body?.message ?? `The server answered ${answer.status}` : "The connection broke", answer.retryAfter);
      }
    } catch (problem) {
      if (!(problem instanceof Cancelled)) throw problem;
      return { cancelled: true };
    }
  }

  async function pause(why, seconds) {
    part("sending-bar").removeAttribute("value");
    part("sending-rate").textContent = "";
    document.title = "Waiting · Upload";
    say(`${why.replace(/\.$/, "")}. Trying again in ${duration(seconds)}.`);
    part("sending-now").hidden = false;
    await new Promise((good) => {
      const timer = setTimeout(good, seconds * 1000);
      wake = () => { clearTimeout(timer); good(); };
    });
    part("sending-now").hidden = true;
    wake = () => {};
    if (cancelled) throw new Cancelled();
  }

  let spoken = 0; // quarters
  function progress() {
    const samples = [];
    return (loaded, total) => {
      const now = performance.now();
      if (samples.length && now - samples.at(-1).at < 200 && loaded < total) return;
      samples.push({ at: now, loaded });
      while (samples.length > 2 && now - samples[0].at > RATE_MS) samples.shift();
      const seconds = (now - samples[0].at) / 1000, rate = seconds > 0.5 ? (loaded - samples[0].loaded) / seconds : 0;
      const share = total ? loaded / total : 0, left = rate > 0 ? duration((total - loaded) / rate) : "";
      part("sending-bar").value = Math.round(share * 1000);
      document.title = `${Math.floor(share * 100)} % · Upload`;
      if (loaded >= total) {
        part("sending-rate").textContent = `${size(total)} sent`;
        say("All is sent. The server checks and stores it.");
        return;
      }
      part("sending-rate").textContent = `${size(loaded)} of ${size(total)}${left ? ` · ${size(Math.round(rate))}/s · ${left} left` : ""}`;
      const quarter = Math.floor(share * 4);
      if (quarter > spoken) say(`${quarter * 25} % sent${left ? `, about ${left} left` : ""}.`); // not each percent: it is read aloud
      spoken = Math.max(spoken, quarter);
    };
  }

  // -- words beside the fields

  function tellProblem(text) {
    const place = part("problem");
    place.textContent = sentence(text);
    place.hidden = !text;
  }

  // In another tab, so that this one keeps the files; the form's proof is then that of a session that is over.
  function tellEnded() {
    const link = document.createElement("a");
    link.href = form.dataset.login;
    link.target = "_blank";
    link.textContent = "Log in (in another tab)";
    part("problem").replaceChildren("Your session has ended. ", link, ", then upload again: what you chose stays here.");
    part("problem").hidden = false;
    expired = true;
  }
  let expired = false;
  async function renew() {
    try {
      const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
      const now = page.getElementById("upload");
      if (now) form.action = now.action;
      expired = !now;
    } catch { /* the upload itself says it */ }
  }

  function focusOn(names) {
    const first = [...form.elements].find((one) => names.includes(one.name) && one.type !== "hidden");
    if (names[0] === "") part("problem").focus();
    else (first ?? part("f-file")).focus();
  }

  function clearErrors() {
    tellProblem("");
    for (const one of form.querySelectorAll(".field-error")) tellError(one.id.slice(2), "");
  }

  // -- the fields

  const OWN = new Set(["idempotency_key", "script", "keep"]);
  function fields() {
    const found = {};
    for (const [name, value] of new FormData(form)) {
      if (typeof value === "string" && value && !OWN.has(name)) found[name] = value;
    }
    return found;
  }

  // What the server says to the fields, and to files, if there are some; null: it cannot be reached.
  async function check(bytes = 0, files = 0) {
    const token = new URL(form.action).searchParams.get("csrf");
    try {
      const answer = await fetch(form.dataset.check, {
        method: "POST",
        headers: { "Content-Type": "application/json", Accept: "application/json", "X-CSRF-Token": token },
        body: JSON.stringify({ fields: fields(), bytes, files }),
      });
      const found = await answer.json();
      return answer.ok ? found : { errors: {}, cuts: {}, problem: found.message ?? `The server answered ${answer.status}.`, status: answer.status };
    } catch {
      return null;
    }
  }

  function tellFound(found) {
    for (const one of form.querySelectorAll(".field .field-cut[id^=c-]")) tell(one, found.cuts[one.id.slice(2)]);
    for (const one of form.querySelectorAll(".field .field-error")) {
      const name = one.id.slice(2);
      if (name !== "script") tellError(name, found.errors[name] ?? "");
    }
  }

  let asked = 0;
  form.addEventListener("change", async (event) => {
    const name = event.target.name;
    if (event.target === service) {
      const option = service.selectedOptions[0], usual = JSON.parse(option?.dataset.usual ?? "{}");
      for (const input of form.querySelectorAll(".field [name]")) {
        if (input.name in usual || !option?.value) {
          if (input.tagName === "SELECT") { if (input !== service) input.options[0].text = usual[input.name] || "As usual"; }
          else input.placeholder = usual[input.name] ?? "";
        }
      }
      for (const one of document.querySelectorAll("[data-usual]:not(option)")) one.textContent = usual[one.dataset.usual] ?? "";
      part("fixed").hidden = !option?.value;
      tell(part("service-note"), option?.dataset.note);
      const most = Number(option?.dataset.most ?? 0);
      part("most-here").hidden = !most || most === Number(form.dataset.mostBytes);
      part("most-here").querySelector("b").textContent = size(most);
      warn();
    }
    if (!name || OWN.has(name) || event.target.type === "file") return;
    const number = ++asked, found = await check();
    if (found?.status === 401) tellEnded();
    else if (found && number === asked) tellFound(found);
  });

  // -- the upload

  addEventListener("beforeunload", (event) => { if (uploading) event.preventDefault(); });
  addEventListener("online", () => wake());
  part("sending-now").addEventListener("click", () => wake());
  part("sending-cancel").addEventListener("click", () => {
    cancelled = true;
    abort();
    wake();
  });

  function sending(on) {
    uploading = on;
    part("sending").hidden = !on;
    form.hidden = on;
    if (on) part("sending-title").focus();
    else document.title = "Upload · Ferryman";
  }

  async function send(record, files) {
    clearErrors();
    sending(true);
    const end = await upload(record, files);
    const page = end.page ?? (end.cancelled ? (await become(record))?.page : null); // a cancel may be too late
    uploading = false;
    if (page) {
      location.assign(page);
      return;
    }
    sending(false);
    if (end.cancelled) tellProblem("The upload was cancelled. Nothing was queued.");
    else if (end.unreadable !== undefined) tellError("file", `${end.unreadable} cannot be read any more: it was changed or removed since it was chosen. Choose it again.`);
    else refused(end.refusal);
    focusOn(end.cancelled ? [""] : [...form.querySelectorAll("[aria-invalid]")].map((one) => one.name).concat(part("problem").hidden ? "file" : "").slice(0, 1));
  }

  function refused({ status, body }) {
    const message = body?.message ?? `The server answered ${status}.`, name = body?.part;
    if (status === 401) {
      tellEnded();
    } else if (name && name !== "file" && tellError(name, message)) {
      tellProblem("Nothing was queued: see what is marked below.");
    } else if (name || ["no_run_sh", "no_file", "too_large", "too_many_files"].includes(body?.code)) {
      tellError("file", message);
      for (const one of part("file-list").children) if (one.dataset.name === name) one.dataset.bad = "";
    } else {
      tellProblem(message);
    }
  }

  function randomKey() {
    return [...crypto.getRandomValues(new Uint8Array(18))].map((one) => one.toString(16).padStart(2, "0")).join("");
  }

  form.addEventListener("submit", async (event) => {
    if (event.submitter?.hasAttribute("formaction")) return;
    event.preventDefault();
    clearErrors();
    const files = [...chosen].map(([name, file]) => ({ name, file }));
    const text = script.value.replace(/\r\n?/g, "\n").replace(/\n*$/, "\n");
    if (text.trim() && !names().some(isEntry)) files.push({ name: "run.sh", file: new File([text], "run.sh") });
    if (!hasEntry()) {
      tellError("file", "A bundle needs a run.sh: write one above, or add a file of that name.");
      part("written").open = true;
      script.focus();
      return;
    }
    const bytes = files.reduce((sum, one) => sum + one.file.size, 0);
    if (expired) await renew();
    const record = {
      key: randomKey(),
      fields: { ...fields(), ...(keep?.checked ? { keep: "1" } : {}) },
      expand: expands(),
      total: bytes,
    };
    const found = await check(bytes, files.length);
    if (found?.status === 401) {
      tellEnded();
      focusOn([""]);
      return;
    }
    if (found) {
      tellFound(found);
      const wrong = Object.keys(found.errors);
      if (wrong.length || found.problem) {
        tellProblem(found.problem || "Nothing was sent: see what is marked below.");
        focusOn(wrong.length ? wrong : [""]);
        return;
      }
    }
    await send(record, files);
  });

  for (const one of document.querySelectorAll("[data-plain]")) one.hidden = true;
  show();
})();
