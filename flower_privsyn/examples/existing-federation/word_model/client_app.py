"""Train the next-word model on the node's raw text."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from word_model.task import read_rows, train

from flower_privsyn import Users, add_handlers

app = ClientApp()


@app.train()
def train_on_text(message: Message, context: Context) -> Message:
    """One local update."""
    texts = [text for _, text in read_rows(context)]
    (model,) = message.content.array_records["arrays"].to_numpy_ndarrays()
    model, pairs = train(model, texts)
    content = RecordDict(
        {"arrays": ArrayRecord([model]), "metrics": MetricRecord({"num-examples": pairs})}
    )
    return Message(content, reply_to=message)


add_handlers(app, lambda context: Users.from_rows(read_rows(context)))
