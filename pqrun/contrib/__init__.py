"""Other people's tools: metrics, traces, error reports. Each is an extra of the installation and costs nothing where it is not used."""
