// The page that uploads: what the server says to the fields, and the upload itself.
(() => {
  const { size, count, isEntry } = window.ferrymanFiles;
  const { chosen, show, warn, hasEntry, expands, names, sentence, tell, tellError } = window.ferrymanList;
  const { Upload, become } = window.ferrymanSend;
  const store = window.ferrymanStore;
  const part = (id) => document.getElementById(id);
  const form = part("upload");
  const service = part("f-service"), script = part("f-script");
  const keep = form.elements.keep;

  // -- words beside the fields

  function tellProblem(text) {
    const place = part("problem");
    place.textContent = sentence(text);
    place.hidden = !text;
  }

  function tellEnded(text) {
    const link = document.createElement("a");
    link.href = form.dataset.login;
    link.textContent = "Log in";
    part("problem").replaceChildren("Your session has ended. ", link, text);
    part("problem").hidden = false;
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
    if (found?.status === 401) tellEnded(".");
    else if (found && number === asked) tellFound(found);
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
    if (status === 401) {
      tellEnded(", then continue: the upload is kept.");
    } else if (locked) {
      tellProblem(`${sentence(message)} The upload is kept: load this page again, then continue.`);
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

  let unsent = null; // the key of an upload that waits for a login
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
    const from = new URL(form.action).searchParams.get("from");
    const record = {
      key: unsent ?? randomKey(),
      owner: form.dataset.owner,
      began: Date.now(),
      fields: { ...fields(), ...(keep?.checked ? { keep: "1" } : {}) },
      from,
      expand: expands(),
      total: bytes,
      files: files.map(({ name, file }) => ({ name, size: file.size })),
    };
    const found = await check(bytes, files.length);
    if (found?.status === 401) { // nothing is lost by the login
      unsent = record.key;
      const kept = await store.keep(record, files);
      tellEnded(kept ? ", then continue: the upload is kept." : ", then choose the files again.");
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
    unsent = null;
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
