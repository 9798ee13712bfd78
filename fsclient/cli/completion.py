"""braidfs completion: the script that makes a shell complete `braidfs`."""

import click
from click.shell_completion import get_completion_class

from .frame import Command


@click.command(
    "completion",
    cls=Command,
    examples=[
        ("braidfs completion bash > /etc/bash_completion.d/braidfs", "For every user of bash."),
        ("source <(braidfs completion zsh)", "In this zsh."),
        ("braidfs completion fish > ~/.config/fish/completions/braidfs.fish", "For fish."),
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    made = get_completion_class(shell)
    assert made is not None, "click has all three"
    root = ctx.find_root()
    click.echo(made(root.command, {}, "braidfs", "_BRAIDFS_COMPLETE").source())
