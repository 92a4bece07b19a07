"""The web pages of pqrun inside a FastAPI application, behind a proxy that has asked who it is; card numbers are masked.

::

    export PQRUN_DSN=postgresql://localhost/shop
    pqrun migrate
    uvicorn examples.fastapi_pages:app          # the pages are at /ops, for whom the proxy names in X-Remote-User
    pqrun worker examples.fastapi_pages:jobs    # runs the jobs

With the proxy on this machine, ``curl -H 'X-Remote-User: ann' localhost:8000/ops/jobs`` is what it sends.
"""

from fastapi import FastAPI
from pydantic import BaseModel, JsonValue

from pqrun import App, JobContext
from pqrun.web import Part, Role, TrustedHeader, create_app

jobs = App()


class Charge(BaseModel):
    order_id: int
    card: str
    amount: int


@jobs.task(payload=Charge, queue="payments", max_attempts=3, timeout=30)
async def charge(ctx: JobContext, payload: Charge) -> None:
    """Charge a card once for an order."""
    if payload.amount <= 0:
        raise ValueError("nothing to charge")


def mask(job_type: str, part: Part, value: JsonValue) -> JsonValue:
    """Return what may be shown: the last four digits of a card."""
    if job_type == "charge" and isinstance(value, dict) and isinstance(value.get("card"), str):
        return {**value, "card": f"**** {str(value['card'])[-4:]}"}
    return value


STAFF = {"ann": Role.ADMIN, "bob": Role.OPERATOR}  # everybody else reads

app = FastAPI(lifespan=jobs.lifespan)
app.mount("/ops", create_app(jobs, authorize=TrustedHeader("X-Remote-User", ["127.0.0.1"], STAFF), redact=mask))


@app.post("/orders/{order_id}/charge", status_code=202)
async def post_charge(order_id: int, card: str, amount: int) -> dict[str, int]:
    job = await charge.defer(order_id=order_id, card=card, amount=amount)
    return {"job": job.id}
