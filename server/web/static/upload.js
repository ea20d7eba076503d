// The page that uploads: the list of files, what the server says to the fields, and the upload itself.
(() => {
  const { dropped, picked, choose, size, count, isArchive, isEntry } = window.ferrymanFiles;
  const { Upload, become } = window.ferrymanSend;
  const store = window.ferrymanStore;
  const part = (id) => document.getElementById(id);
  const form = part("upload");
  const SHOWN = 200; // files of the list

  const service = part("f-service"), script = part("f-script"), expand = part("f-expand");
  const keep = form.elements.keep;
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

  function tellProblem(text) {
    const place = part("problem");
    place.textContent = sentence(text);
    place.hidden = !text;
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
    if (found && number === asked) tellFound(found);
  });

  // -- the upload

  const target = (record) => {
    const url = new URL(form.action);
    url.searchParams.delete("from");
    if (record.from) url.searchParams.set("from", record.from);
    return url.href;
  };
  let current = null, warnsBeforeLeaving = false;
  addEventListener("beforeunload", (event) => { if (warnsBeforeLeaving) event.preventDefault(); });
  addEventListener("online", () => current?.wake());
  part("sending-now").addEventListener("click", () => current?.wake());
  part("sending-cancel").addEventListener("click", () => current?.cancel());

  function sending(on) {
    part("sending").hidden = !on;
    form.hidden = on;
    part("earlier").hidden = on;
    if (on) part("sending-title").focus();
    else document.title = "Upload · Ferryman";
  }

  async function send(record, files) {
    if (!await store.take(record.key)) {
      tellProblem("Another tab goes on with this upload.");
      return;
    }
    clearErrors();
    sending(true);
    warnsBeforeLeaving = true;
    store.keep(record, files).then((kept) => { warnsBeforeLeaving &&= !kept; });
    current = new Upload(target(record), form.dataset.sent);
    const end = await current.run(record, files);
    current = null;
    warnsBeforeLeaving = false;
    if (end.page) {
      await store.remove(record.key);
      location.assign(end.page);
      return;
    }
    const locked = end.refusal && [401, 403].includes(end.refusal.status);
    if (!locked) await store.remove(record.key);
    if (end.cancelled) { // perhaps too late
      const found = await become(form.dataset.sent, record);
      if (found?.job) {
        location.assign(found.page);
        return;
      }
    }
    store.give();
    sending(false);
    fill(record, files);
    if (end.cancelled) tellProblem("The upload was cancelled. Nothing was queued.");
    else if (end.unreadable !== undefined) tellError("file", `${end.unreadable} cannot be read any more: it was changed or removed since it was chosen. Choose it again.`);
    else refused(end.refusal, locked);
    focusOn(end.cancelled ? [""] : [...form.querySelectorAll("[aria-invalid]")].map((one) => one.name).concat(part("problem").hidden ? "file" : "").slice(0, 1));
  }

  function refused({ status, body }, locked) {
    const message = body?.message ?? `The server answered ${status}.`, name = body?.part;
    if (locked) {
      tellProblem(`${sentence(message)} The upload is kept: load this page again${status === 401 ? " and log in" : ""}, then continue.`);
    } else if (name && name !== "file" && tellError(name, message)) {
      tellProblem("Nothing was queued: see what is marked below.");
    } else if (name || ["no_run_sh", "no_file", "too_large", "too_many_files"].includes(body?.code)) {
      tellError("file", message);
      for (const one of part("file-list").children) if (one.dataset.name === name) one.dataset.bad = "";
    } else {
      tellProblem(message);
    }
  }

  // The form as it was when the upload began.
  function fill(record, files) {
    for (const [name, value] of Object.entries(record.fields)) {
      const input = part(`f-${name}`);
      if (input) input.value = value;
    }
    if (chosen.size || script.value.trim()) return;
    for (const { name, file } of files) chosen.set(name, file);
    show();
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
    const found = await check(bytes, files.length);
    if (found) {
      tellFound(found);
      const wrong = Object.keys(found.errors);
      if (wrong.length || found.problem) {
        tellProblem(found.problem || "Nothing was sent: see what is marked below.");
        focusOn(wrong.length ? wrong : [""]);
        return;
      }
    }
    const from = new URL(form.action).searchParams.get("from");
    const record = {
      key: randomKey(),
      owner: form.dataset.owner,
      began: Date.now(),
      fields: { ...fields(), ...(keep?.checked ? { keep: "1" } : {}) },
      from,
      expand: expands(),
      total: bytes,
      files: files.map(({ name, file }) => ({ name, size: file.size })),
    };
    await send(record, files);
  });

  // -- uploads that had begun before this page was loaded

  function offer(record) {
    const card = document.createElement("div"), text = document.createElement("p"), buttons = document.createElement("p");
    const go = document.createElement("button"), discard = document.createElement("button");
    card.className = "notice";
    card.dataset.kind = "doubt";
    card.dataset.key = record.key;
    card.setAttribute("role", "status");
    const began = new Date(record.began);
    text.textContent = `An upload of ${count(record.files.length, "file")}, ${size(record.total)}, for the service ${record.fields.service} had begun at ${began.toLocaleString()}, and has not come to its end.`;
    buttons.className = "buttons";
    go.type = discard.type = "button";
    go.className = "small";
    go.textContent = "Continue";
    discard.className = "small quiet";
    discard.textContent = "Discard";
    discard.addEventListener("click", async () => {
      card.remove();
      await store.remove(record.key);
    });
    go.addEventListener("click", async () => {
      let files = await store.files(record.key);
      if (!files) {
        const missing = record.files.find((one) => chosen.get(one.name)?.size !== one.size);
        if (missing) {
          text.textContent = `The browser did not keep these files. Choose the same ones again below, then continue: ${missing.name} (${size(missing.size)}) is missing.`;
          return;
        }
        files = record.files.map(({ name }) => ({ name, file: chosen.get(name) }));
      }
      card.remove();
      await send({ ...record, begunBefore: true }, files);
    });
    buttons.append(go, discard);
    card.append(text, buttons);
    part("earlier").append(card);
    return { card, text, buttons };
  }

  store.whenTaken((key) => {
    for (const card of part("earlier").children) if (card.dataset.key === key) card.remove();
  });
  for (const one of document.querySelectorAll("[data-plain]")) one.hidden = true;
  show();
  store.mine(form.dataset.owner).then(async (records) => {
    for (const record of records) {
      const found = await become(form.dataset.sent, record);
      const { text, buttons } = offer(record);
      if (!found?.job) continue;
      await store.remove(record.key); // it had arrived
      const link = document.createElement("a");
      link.href = found.page;
      link.textContent = `job ${found.job}`;
      text.replaceChildren(`The upload of ${count(record.files.length, "file")} that had begun has arrived: it is `, link, ".");
      buttons.remove();
    }
  });
})();
