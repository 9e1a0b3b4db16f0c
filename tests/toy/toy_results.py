"""Finished runs that never ran: for tests of what is made of them."""

from clusterformer.compare.results import Result


def result(row: str, column: str, seed: int, value: float, **changes) -> Result:
    fields = {
        "measures": {"test/accuracy": value, "val/accuracy": 0.5},
        "monitor": "val/accuracy",
        "mode": "max",
        "seconds_a_step": 0.2,
        "steps_an_epoch": 10,
        "epochs": 3,
        "parameters": 1000,
        "peak_mib": 100.0,
        "curve": [(9, 0.1), (19, 0.5)],
        "config": {"model.attention": row, "seed_everything": seed},
        "environment": {
            "command": "clusterformer fit",
            "commit": "abc",
            "packages": {"torch": "2.13"},
        },
        "folder": "",
    }
    return Result(row, column, seed, **(fields | changes))


RESULTS = [
    *(result("full", "MR", seed, value) for seed, value in enumerate([0.7, 0.8, 0.9])),
    *(result("full", "CR", seed, value) for seed, value in enumerate([0.5, 0.5, 0.5])),
    *(result("ours", "MR", seed, value) for seed, value in enumerate([0.8, 0.9, 1.0])),
    *(result("ours", "CR", seed, value) for seed, value in enumerate([0.5, 0.5, 0.8])),
]
