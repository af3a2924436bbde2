"""A repository agent: unpacks the versions of a model from an archive."""

import shutil
import tarfile

from tpy.repository_agent import AgentAction


class UnpackAgent:
    def act(self, action, model):
        """Called for each action on each model, one at a time. What is raised in LOAD refuses the model."""
        if action is not AgentAction.LOAD:
            return
        archive = model.directory / model.parameters.get("archive", "versions.tar.gz")
        if not archive.is_file():
            raise FileNotFoundError(f"there is no {archive.name} in the folder of model '{model.name}'")
        folder = model.acquire()  # empty, ours alone, and removed when the model is unloaded
        shutil.copy(model.directory / "config.pbtxt", folder)
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")  # refuses links and paths that lead out of the folder
        model.use(folder)  # the model is loaded from there
