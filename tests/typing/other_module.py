"""A task of another module, as the typed cases import it."""

from pydantic import BaseModel

from pqrun import App, JobContext


class Note(BaseModel):
    text: str


class Kept(BaseModel):
    key: str


jobs = App()


@jobs.task(payload=Note)
async def keep(ctx: JobContext, payload: Note) -> Kept:
    return Kept(key=payload.text)
