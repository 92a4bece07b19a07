"""A Django shop: an order and its job commit together; the handlers use the ORM.

In the folder above::

    export DATABASE_URL=postgresql://localhost/shop     # settings.py and pqrun both read it
    pqrun migrate
    python manage.py migrate
    python manage.py runserver                          # or: gunicorn shop.wsgi:application
    pqrun worker shop.worker:jobs --concurrency 10

Or under ASGI, where the async view can be used::

    uvicorn shop.asgi:application
"""
