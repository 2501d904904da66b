"""From a question to a response: JSON, or one sentence about what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from lastiterate.fields import Fields
from lastiterate.web.fields import ASKED, NAMES
from lastiterate.web.reading import blamed
from lastiterate.web.workers import Broke, TooLong

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

_LEFT = 499  # nobody reads it


async def answered(request: Request, question: Awaitable[Fields | None]) -> Response | None:
    """The answer; 422 and a sentence where the question is refused; None where there is none. Who leaves is let go."""
    from starlette.responses import Response

    asked = asyncio.ensure_future(question)
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({asked, left}, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            return Response(status_code=_LEFT)
        found = asked.result()
        return None if found is None else json_of(found)
    except ValueError as refusal:
        sentence = " ".join(str(refusal).split())
        return json_of({"error": sentence, "field": blamed(sentence, (*NAMES, *ASKED))}, 422)
    except (TooLong, Broke) as trouble:
        return json_of({"error": str(trouble), "field": None}, 503)
    except RuntimeError as fault:
        return json_of({"error": f"this should not have happened: {fault}", "field": None}, 500)
    finally:
        left.cancel()
        asked.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def json_of(fields: Fields, status: int = 200) -> Response:
    """A JSON object as an answer."""
    from starlette.responses import Response

    return Response(json.dumps(fields, allow_nan=False), status, media_type="application/json")
