// Keeps what is live on a page up to date: listens to the server, and says so when it is away.
// An element with data-live="URL" listens there; each change sends "live" to the page's body, which
// is what the parts with hx-trigger="live from:body" wait for. The URL has the number of the newest
// event that the page knows, so that nothing is read twice and nothing is missed.
// Also decides what becomes of a part of a page when the answer to its request is an error.
(() => {
  const source = document.querySelector("[data-live]");
  const notice = document.getElementById("connection");
  if (!notice) return;
  let events, timer, done = !source || !window.EventSource, lost = false;

  const say = (text, state) => {
    notice.textContent = text;
    notice.dataset.state = state;
    notice.hidden = !text;
  };
  const lose = (why) => {
    if (lost) return; // said once, and read aloud once
    lost = true;
    say(`${why} Trying again; what you see may be old.`, "lost");
  };
  const back = () => {
    if (!lost) return;
    lost = false;
    say("Connected again.", "back");
    setTimeout(() => { if (!lost) say("", ""); }, 4000);
  };

  // An error page has no part of this page: put in place of one it would leave nothing.
  document.addEventListener("htmx:after:request", (event) => {
    const { ctx } = event.detail, status = ctx.response.status;
    if (status < 400) {
      if (!events || events.readyState === EventSource.OPEN || done) back();
    } else if (ctx.response.headers.has("HX-Redirect")) {
      return; // to the login
    } else if ([403, 404, 410].includes(status) && ctx.text.includes('id="main"')) {
      ctx.select = ctx.target = "#main"; // it is gone: the error page says so
      ctx.swap = "outerHTML";
    } else {
      event.preventDefault();
      lose(`The server answers with an error (${status}).`);
    }
  });
  document.addEventListener("htmx:error", (event) => {
    if (event.detail.ctx && !event.detail.ctx.response) lose("The server cannot be reached.");
  });

  const refresh = () => document.body.dispatchEvent(new CustomEvent("live"));
  const changed = () => {
    clearTimeout(timer);
    timer = setTimeout(refresh, 50);
  };
  function connect() {
    if (done || document.hidden || !source.isConnected) return;
    events = new EventSource(source.dataset.live);
    events.addEventListener("changed", changed);
    events.addEventListener("end", () => {
      done = true;
      events.close();
    });
    events.onopen = () => {
      if (lost) refresh();
      back();
    };
    events.onerror = () => {
      if (done) return;
      lose("The server cannot be reached.");
      if (events.readyState !== EventSource.CLOSED) return; // the browser tries again
      refresh(); // an answer that is no stream: the page may show why
      setTimeout(() => { if (events.readyState === EventSource.CLOSED) connect(); }, 3000);
    };
  }
  // A page that is not looked at needs no connection: browsers have few for one server.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) events?.close();
    else if (events?.readyState !== EventSource.OPEN) connect();
  });
  addEventListener("pagehide", () => events?.close());
  addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  connect();
})();
