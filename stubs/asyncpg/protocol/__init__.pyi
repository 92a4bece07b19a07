from .record import Record as Record
