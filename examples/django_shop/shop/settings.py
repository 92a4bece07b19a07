"""The least that this project needs."""

import os

from psycopg.conninfo import conninfo_to_dict

_server = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = os.environ.get("SECRET_KEY", "only for development")
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
INSTALLED_APPS = ["shop"]
ROOT_URLCONF = "shop.urls"
DATABASES = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": _server.pop("dbname"), "OPTIONS": _server},
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
TEST_RUNNER = "shop.testing.Runner"
