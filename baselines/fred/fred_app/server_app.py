"""The server: moments released once, and public text ranked by them."""

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flower_privsyn import strategy_of

SAMPLE = Path(__file__).parent / "sample"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ask once, and rank; `sample/near.jsonl` in `candidates` is a file of the app."""
    given = dict(context.run_config)
    given["candidates"] = str(given["candidates"]).replace("sample/", f"{SAMPLE}/")
    strategy_of(given).start(grid)
