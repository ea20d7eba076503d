"""A portal: its users have no account on the Ferryman server, and their browsers no token."""

import os
import secrets
from collections.abc import AsyncIterator

from aiohttp import web

from ferryman import Client

PAGE = """<!doctype html><meta charset="utf-8"><title>Portal</title><h1>Portal</h1>
<form id="form"><input id="files" type="file" multiple required> <button>Run</button></form>
<progress id="bar" max="1" value="0"></progress><pre id="log"></pre><p id="results"></p>
<script>
const $ = id => document.getElementById(id), say = text => $("log").append(text + "\\n");
$("form").onsubmit = async event => {
  event.preventDefault();
  const ticket = await (await fetch("/ticket", {method: "POST"})).json();
  const form = new FormData(), post = new XMLHttpRequest();  // fetch knows no progress
  for (const file of $("files").files) form.append("file", file);
  post.upload.onprogress = now => $("bar").value = now.loaded / now.total;
  post.onload = () => post.status == 201 ? follow(post.response) : say(post.response.message);
  post.onerror = () => say("the upload was cut off: try again");
  post.open("POST", ticket.upload_url), post.responseType = "json", post.send(form);
};
function follow(job) {
  const events = new EventSource(job.links.events);
  for (const state of ["running", "completed", "failed", "cancelled"])
    events.addEventListener("job." + state, event => {
      say(`job ${job.id}: ${JSON.parse(event.data).message}`);
      if (state != "running") events.close(), show(job);
    });
}
async function show(job) {
  for (const file of (await (await fetch(job.links.files)).json()).items) {
    const link = $("results").appendChild(document.createElement("a"));
    link.href = `/${job.id}/` + file.path.split("/").map(encodeURIComponent).join("/");
    link.textContent = file.path + " ";
  }
}</script>"""


async def page(request: web.Request) -> web.Response:
    answer = web.Response(text=PAGE, content_type="text/html")
    if "user" not in request.cookies:  # your log-in comes here
        answer.set_cookie("user", secrets.token_hex(8), httponly=True, samesite="Strict")
    return answer


async def ticket(request: web.Request) -> web.Response:
    made = await ferryman.create_ticket(request.cookies["user"], service="example")
    return web.json_response({"upload_url": made.upload_url})


async def file(request: web.Request) -> web.Response:
    job = await ferryman.status(int(request.match_info["id"]))
    if job.user_id != request.cookies.get("user"):
        raise web.HTTPNotFound
    link = await ferryman.create_link(job.id, "file", path=request.match_info["path"])
    raise web.HTTPFound(link.url)


async def connected(_: web.Application) -> AsyncIterator[None]:
    async with ferryman:
        yield


ferryman = Client(os.environ["FERRYMAN_URL"], token=os.environ["FERRYMAN_TOKEN"])
app = web.Application()
app.cleanup_ctx.append(connected)
app.add_routes([web.get("/", page), web.post("/ticket", ticket), web.get("/{id}/{path:.+}", file)])
web.run_app(app, host="localhost", port=int(os.environ["PORT"]))
