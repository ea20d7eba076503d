// The files of an upload: what a drop or a pick has in it, and what of a folder is left out, which is
// the same as with "ferryman submit": version control, former results, and what a .ferrymanignore says.
window.ferrymanFiles = (() => {
  const IGNORE_FILE = ".ferrymanignore";
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

  function regex(pattern) {
    let below = "";
    if (pattern.endsWith("/**")) {
      pattern = pattern.slice(0, -3);
      below = "/.*";
    }
    const text = pattern.replace(/(^|\/)(?:\*\*\/)+|\*+|\?|\[!?[^\]]+\]|[.+^${}()|\\[\]]/g, (part, slash) => {
      if (part.endsWith("**/")) return `${slash}(?:.*/)?`;
      if (part.startsWith("*")) return "[^/]*";
      if (part === "?") return "[^/]";
      if (part.length > 1) {
        const not = part[1] === "!", set = part.slice(not ? 2 : 1, -1).replace(/[\\^[\]]/g, "\\$&");
        return not ? `[^/${set}]` : `[${set}]`;
      }
      return `\\${part}`;
    });
    return text + below;
  }

  function parsePattern(line) {
    let text = line.replace(/ +$/, "");
    if (!text || text.startsWith("#")) return null;
    const takesBack = text.startsWith("!");
    if (takesBack) text = text.slice(1);
    const foldersOnly = text.endsWith("/");
    text = text.replace(/\/+$/, "").replace(/^\\/, "");
    if (!text) return null;
    const anywhere = text.includes("/") ? "" : "(?:.*/)?";
    try {
      return { regex: new RegExp(`^${anywhere}${regex(text.replace(/^\/+/, ""))}$`, "s"), takesBack, foldersOnly };
    } catch {
      return null; // it means nothing
    }
  }

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
    const own = files.find((one) => one.name === IGNORE_FILE);
    const lines = own && own.file.size <= 1 << 20 ? (await own.file.text()).split(/\r?\n/) : [];
    const patterns = lines.map(parsePattern).filter(Boolean);
    const results = await formerResults(files);
    const folders = new Map();

    const leaves = (name, isFolder) => {
      const base = name.slice(name.lastIndexOf("/") + 1);
      let leave = VERSION_CONTROL.has(base) || base === IGNORE_FILE || (isFolder ? results.has(name) : FORMER_RESULT.test(base));
      for (const one of patterns) {
        if ((isFolder || !one.foldersOnly) && one.regex.test(name)) leave = !one.takesBack;
      }
      return leave;
    };
    const taken = [], left = [], names = new Set();
    for (const one of files) {
      let leave = false;
      for (let at = one.name.indexOf("/"); at > 0 && !leave; at = one.name.indexOf("/", at + 1)) {
        const folder = one.name.slice(0, at);
        if (!folders.has(folder)) folders.set(folder, leaves(folder, true));
        leave = folders.get(folder);
        if (leave) names.add(`${folder}/`);
      }
      if (!leave && leaves(one.name, false)) {
        leave = true;
        if (one.name !== IGNORE_FILE) names.add(one.name);
      }
      (leave ? left : taken).push(one);
    }
    return { taken, left: left.filter((one) => one.name !== IGNORE_FILE), names: [...names] };
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

  return { dropped, picked, choose, size, count, isArchive, isEntry };
})();
