"""`fnlkit export`: write a model for other programs."""

import click

import fnlkit
from fnlkit.cli.plumbing import console, printable, suggest, takes_file, trust_option


@click.command()
@click.argument("run", metavar="RUN.pt")
@trust_option
@click.option("-o", "--output", required=True, metavar="MODEL", callback=takes_file,
              help="Output file; the ending selects the format: model.onnx, model.pt2 or state_dict.pt.")  # fmt: skip
def command(run: str, trust: bool, output: str) -> None:
    """Write the model of a run as ONNX, torch.export program or state dictionary.

    ONNX and pt2 include the normalization and the backbone of images, and take images (n, channels, height, width) with values
    in 0 to 1, or vectors.

    \b
    Example:
      fnlkit export run.pt -o model.pt2
    """
    difference = fnlkit.export(run, output, trust=trust)
    checked = "" if difference is None else f"; its logits differ from the network's by at most {difference:.1e}"
    console().print(printable(f"wrote {output}{checked}"), style="dim", soft_wrap=True)
    suggest("report", run, "-o", "report.html")
