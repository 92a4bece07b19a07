"""The app of all jobs. It imports nothing of Django, so that every module may import it."""

from pqrun import App

jobs = App()  # DATABASE_URL, when it is opened
