"""Questions that an MCP server asks the user during a call: forms, and pages to open (MCP, Elicitation)."""

from __future__ import annotations

from typing import Any

import anyio
import mcp_types
from mcp.shared.exceptions import MCPError

from cantrip_acp.gates.mcp.declaration import QUESTIONS, McpServer, ServerQuestion, ServerQuestions
from cantrip_acp.sandbox import clean
from cantrip_acp.types.records import new_id


class _Page:
    """A page that a server asks the user to open."""

    def __init__(self, question_id: str) -> None:
        self.question_id = question_id
        self.accepted = False
        self.done = anyio.Event()


class UserQuestions:
    """The questions of one server, and the pages that its user has open."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._questions: ServerQuestions | None = None
        """The object that shows the server's questions during the last call."""
        self._pages: dict[str, _Page] = {}
        """Pages that are not done, by the server's id."""

    def begin_call(self) -> None:
        """Ask where the caller of the gate says (`QUESTIONS`)."""
        self._questions = QUESTIONS.get()

    def end_call(self) -> None:
        # A server need not say that a page is done. The call was what the page was for.
        for known in tuple(self._pages):
            self.complete(known)
        self._pages.clear()

    async def on_question(
        self, context: object, params: mcp_types.ElicitRequestParams
    ) -> mcp_types.ElicitResult | mcp_types.ErrorData:
        """Show a question of the server to the user."""
        questions = self._questions
        if questions is None:
            return mcp_types.ErrorData(code=mcp_types.INVALID_REQUEST, message="Nobody can be asked now")
        page = params if isinstance(params, mcp_types.ElicitRequestURLParams) else None
        question = ServerQuestion(
            id=new_id("el"),
            server=self._server.name,
            message=clean(params.message)[:4000],
            url="" if page is None else page.url,
            schema={} if isinstance(params, mcp_types.ElicitRequestURLParams) else params.requested_schema,
        )
        known = (page.elicitation_id if page is not None else None) or question.id
        entry = _Page(question.id)
        if page is not None:
            # A quick server says that it is done before we have the answer.
            self._pages[known] = entry
        action, content = await questions.ask(question)
        entry.accepted = action == "accept"
        if entry.done.is_set():
            self.complete(known)
        elif not entry.accepted:
            self._pages.pop(known, None)
        given: Any = {"action": action if action in ("accept", "decline") else "cancel"}
        if not page and given["action"] == "accept":
            given["content"] = dict(content or {})
        return mcp_types.ElicitResult.model_validate(given)

    def complete(self, known: str) -> None:
        """Tell the client that a page is done, once the user has accepted it."""
        page = self._pages.get(known)
        if page is None:
            return
        page.done.set()
        if page.accepted:
            del self._pages[known]
            if self._questions is not None:
                self._questions.complete(page.question_id)

    async def open_pages(self, error: MCPError) -> bool:
        """Show the pages that a server wants to be opened before a call (MCP, URL elicitation required).

        Returns True if the user has finished all of them, so that the call can be made again.
        """
        if error.code != mcp_types.URL_ELICITATION_REQUIRED or not self._server.asks_user:
            return False
        ended = []
        try:
            wanted = mcp_types.ElicitationRequiredErrorData.model_validate(error.error.data).elicitations
        except ValueError:
            return False
        for params in wanted:
            answer = await self.on_question(None, params)
            if not isinstance(answer, mcp_types.ElicitResult) or answer.action != "accept":
                return False
            if (page := self._pages.get(params.elicitation_id or "")) is not None:
                ended.append(page.done)
        for event in ended:
            await event.wait()
        return bool(wanted)
