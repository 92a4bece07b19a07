"""What Prometheus would read of a registry."""

from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pqrun.contrib.prometheus import exposition

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Every sample, by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Scrape:
    """One look at a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.content_type, text = exposition(registry=registry)
        self.text = text.decode()
        self._samples = samples(self.text)

    def value(self, name: str, **labels: str) -> float | None:
        """The value of a sample, None where it is not exported."""
        return self._samples.get((name, frozenset(labels.items())))

    def named(self, name: str) -> list[dict[str, str]]:
        """The labels of all samples of this name."""
        return [dict(labels) for found, labels in self._samples if found == name]
