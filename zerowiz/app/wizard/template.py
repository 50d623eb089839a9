"""The template that a person starts from: it lies in the folder once they go on with it."""

from zerowiz.app.ask.person import Person
from zerowiz.core.decision.questions import TEMPLATE
from zerowiz.core.launch.plan import PlannedFile
from zerowiz.emit.new_files import add_files, refuse_other_files, remove_added
from zerowiz.probe.templates import read_template
from zerowiz.words import _, joined, listing


def script_of(answer: str) -> str:
    """The path of the script that is meant, once a template is copied."""
    return answer.removeprefix(TEMPLATE)


def check_template(answer: str) -> None:
    """See that a template can be copied here.

    Raises:
        ZerowizError: A file of another content has the name of one of its files.
    """
    refuse_other_files(read_template(script_of(answer)))


class CopiedTemplate:
    """A template in the working folder: taken off again unless the conversation ends in files.

    Args:
        person: Hears what stays.
    """

    def __init__(self, person: Person) -> None:
        self._person = person
        self._script: str | None = None
        self._added: tuple[PlannedFile, ...] = ()

    def follow(self, answer: str | None) -> bool:
        """Copy the template of this answer, if it is one, and take off the one before.

        Returns:
            Whether other files lie in the folder now.

        Raises:
            ZerowizError: It cannot be copied.
        """
        script = None if answer is None else script_of(answer)
        if script == self._script:
            return False
        has_changed = bool(self._added)
        self.take_off()
        if answer is not None and answer.startswith(TEMPLATE):
            self._added = add_files(read_template(script_of(answer)))
            self._script = script
            return True
        return has_changed

    def take_off(self) -> None:
        """Leave the folder as it was, but for what somebody changed."""
        stays = remove_added(self._added)
        self._added, self._script = (), None
        if stays:
            self._person.tell(
                [
                    _(
                        "{stays} stays: it was edited since it was copied",
                        stays=joined(_(" and "), stays),
                    )
                ]
            )

    def keep(self) -> None:
        """The files belong to the person from now on, who hears which they are."""
        tops = sorted({file.path.partition("/")[0] for file in self._added})
        if tops:
            self._person.tell([_("copied {files} into this folder", files=listing(tops))])
        self._added = ()
