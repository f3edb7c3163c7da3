"""FedAvg of a next-word model: updates computed on raw text, averaged without noise."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from word_model import task

from flower_privsyn import open_run, strategy_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Average the nodes' models."""
    strategy = FedAvg(fraction_evaluate=0.0)
    averaged = strategy.start(
        grid,
        initial_arrays=ArrayRecord([task.new_model()]),
        num_rounds=int(context.run_config["num-server-rounds"]),
    )
    print(task.result(averaged.arrays.to_numpy_ndarrays()[0]))

    private = strategy_of(context.run_config, other_keys=["num-server-rounds"])
    private.start(grid)
    model, _ = task.train(task.new_model(), open_run(private.run.path).texts["text"])
    print("from private text:", task.result(model))
