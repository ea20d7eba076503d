// Small things that pages need everywhere. All of them work without it, with a little more waiting.
(() => {
  // Relative times grow old while a page is open.
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const relative = (seconds) => {
    const size = Math.abs(seconds);
    if (size < 5) return "just now";
    const [unit, name] = units.find(([unit]) => size >= unit);
    const text = `${Math.floor(size / unit)} ${name}`;
    return seconds < 0 ? `${text} ago` : `in ${text}`;
  };
  // The clock of this computer may be wrong: count from the server's.
  const server = document.documentElement.dataset.now;
  const ahead = server ? Date.now() - Date.parse(server) : 0;
  const tick = () => {
    for (const one of document.querySelectorAll("time[datetime]")) {
      const text = relative((Date.parse(one.dateTime) - (Date.now() - ahead)) / 1000);
      if (one.textContent !== text) one.textContent = text;
    }
  };
  setInterval(tick, 5000);
  document.addEventListener("htmx:after:swap", tick);

  // For those who hear the page.
  const live = document.getElementById("said");
  const say = (text) => { if (live) live.textContent = text; };

  // What came of a form stands at the top of the page: that is where its sender goes on.
  const notice = document.querySelector("main > .notice");
  if (notice) {
    notice.tabIndex = -1;
    notice.focus();
  }

  // <button data-copy="#id"> copies what is written there.
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const text = document.querySelector(button.dataset.copy).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not allowed on plain http: select it, so that Ctrl-C does
      const range = document.createRange();
      range.selectNodeContents(document.querySelector(button.dataset.copy));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Press Ctrl-C";
      say("It is selected: press Ctrl-C to copy it.");
      return;
    }
    say("Copied.");
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });

  // <form data-confirm="…"> asks first. Without scripts the server does what the form says.
  document.addEventListener("submit", (event) => {
    const text = event.target.dataset.confirm;
    if (text && !confirm(text)) event.preventDefault();
  });

  // A link that is a button for those who hear the page: Space presses it, too.
  document.addEventListener("keydown", (event) => {
    if (event.key !== " " || !event.target.matches("a[role=button]")) return;
    event.preventDefault(); // the page would scroll
    if (!event.repeat) event.target.click();
  });

  // Elements that only make sense with scripts.
  for (const one of document.querySelectorAll("[data-script]")) one.hidden = false;
})();
