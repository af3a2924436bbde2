"""One request from admission to its last response: ticket, batch, outputs, responses, statistics, log."""
