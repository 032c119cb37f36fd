"""The option `--image` of `specc run`: the images of one prompt or chat."""

from collections.abc import Sequence

from specc.cli.run_task_inputs import ARRAY_FILE_SUFFIXES
from specc.cli.terminal import STDIN_NAME
from specc.preprocessing.image_prompts import find_image_input, find_placeholder, find_prompt_inputs
from specc.preprocessing.task_kinds import Task
from specc.runtime.generation_request import has_chat_template
from specc.runtime.model_inputs import ModelInputs


def add_task_images(task: Task, images: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """Return the arguments of a task, with the images of `--image` added by name."""
    named = [f"image={path}" for path in images if any(s.name == "image" for s in task.slots)]
    return [*named, *arguments]


def add_prompt_images(
    model: ModelInputs, images: Sequence[str], arguments: Sequence[str], chat: str | None
) -> tuple[list[str], str | None]:
    """Return the arguments of a run, with the images of `--image` added by name, and the user
    message. A prompt without image placeholders becomes the message if the model has a chat
    template, otherwise the placeholders are put before it. Raise E0910 if the model takes no
    images.
    """
    if not images or chat is not None:
        return [*arguments], chat
    image_input = find_image_input(model.graph, model.reading)
    named = [f"{image_input}={path}" for path in images]
    prompts = find_prompt_inputs(model.graph, model.reading)
    if not prompts or len(arguments) != 1 or not _is_text_argument(arguments[0]):
        return [*named, *arguments], None
    (text_input, record), (argument,) = prompts[0], arguments
    text = argument.removeprefix(f"{text_input}=")
    placeholder = find_placeholder(record)
    if placeholder in text:
        return [*named, *arguments], None
    if has_chat_template(model):
        return [], text
    return [*named, f"{text_input}={placeholder * len(images)}{text}"], None


def _is_text_argument(word: str) -> bool:
    """Return True if an argument is a text, not a file or a list."""
    is_file = word.startswith("@") or word.lower().endswith(ARRAY_FILE_SUFFIXES)
    return word != STDIN_NAME and not is_file and not word.startswith("[")
