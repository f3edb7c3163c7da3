"""Mistakes in what is done with the classes of texts, from the file to the vote."""

from __future__ import annotations

from scripts.mutations.mutation import Mutation

VOTES = "flower_privsyn/queries/nearest_neighbor.py"
VOTES_TESTS = "tests/queries/test_labelled_histogram.py"
LABEL_TESTS = "tests/data/test_labels.py"
REQUEST_TESTS = "tests/node/test_requests.py"
AUG_PE_TESTS = "tests/strategies/test_aug_pe.py"

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        name="a text votes for a candidate of another class",
        file=VOTES,
        function="LabelledHistogram._votes",
        before="rows = np.flatnonzero(cohort.labels == label)",
        after="rows = np.flatnonzero(cohort.labels <= label)",
        tests=(VOTES_TESTS,),
    ),
    Mutation(
        name="a text of a class without candidates votes for the last one",
        file=VOTES,
        function="LabelledHistogram._votes",
        before="    voting = nearest >= 0\n",
        after="    voting = nearest >= -1\n",
        tests=(VOTES_TESTS,),
    ),
    Mutation(
        name="labels do not go with their records",
        file="flower_privsyn/queries/query.py",
        function="Cohort.rows",
        before="labels = None if self.labels is None else self.labels[keep]",
        after="labels = None if self.labels is None else self.labels[: len(self.owners[keep])]",
        tests=(VOTES_TESTS,),
    ),
    Mutation(
        name="a text of no class of the run counts",
        file="flower_privsyn/data/users.py",
        function="Users.of_classes",
        before="(label in known for label in self.labels)",
        after="(label is not None for label in self.labels)",
        tests=(LABEL_TESTS,),
    ),
    Mutation(
        name="one text of another class makes a node refuse",
        file="flower_privsyn/data/users.py",
        function="Users.of_classes",
        before="    if not keep.all():\n",
        after='    if not keep.all():\n        raise DataError("another class")\n',
        tests=(LABEL_TESTS, AUG_PE_TESTS),
    ),
    Mutation(
        name="a cap takes texts away and leaves their labels",
        file="flower_privsyn/data/cut.py",
        function="Cut.samples",
        before="labels = None if labels is None else labels[keep]",
        after="labels = None if labels is None else labels[: len(keep)]",
        tests=(LABEL_TESTS,),
    ),
    Mutation(
        name="records of other labels are found on the disk",
        file="flower_privsyn/client_apps/records.py",
        function="EmbeddingSource.key",
        before="settings = (*settings, cut.classes, users.labels)",
        after="settings = (*settings, cut.classes)",
        tests=(f"{AUG_PE_TESTS}::TestLabels",),
    ),
    Mutation(
        name="records lose their labels on the disk",
        file="flower_privsyn/client_apps/records.py",
        function="EmbeddingSource.keep",
        before="            labels=records.cohort.labels,\n",
        after="",
        tests=(f"{AUG_PE_TESTS}::TestLabels",),
    ),
    Mutation(
        name="a question of classes is asked where nobody said which there are",
        file="flower_privsyn/messages/data_request.py",
        function="DataRequest.suits",
        before="    if query.labelled != bool(self.classes):\n",
        after="    if not query.labelled and self.classes:\n",
        tests=(VOTES_TESTS,),
    ),
    Mutation(
        name="any question takes classes along",
        file="flower_privsyn/messages/data_request.py",
        function="DataRequest.suits",
        before="    if query.labelled != bool(self.classes):\n",
        after="    if query.labelled and not self.classes:\n",
        tests=(VOTES_TESTS, REQUEST_TESTS),
    ),
    Mutation(
        name="classes are asked without the owner's consent",
        file="flower_privsyn/client_apps/handlers.py",
        function="_Node._charged_answer",
        before="    guard.check_classes(ask.data.classes)\n",
        after="",
        tests=(REQUEST_TESTS,),
    ),
    Mutation(
        name="a run announces classes without the owner's consent",
        file="flower_privsyn/client_apps/handlers.py",
        function="_Node.prepare",
        before="    guard.check_classes(data.classes)\n",
        after="",
        tests=(REQUEST_TESTS,),
    ),
    Mutation(
        name="a label column of the usual name is the owner's consent",
        file="flower_privsyn/node/guard.py",
        function="NodeGuard.__init__",
        before='bool(node_config.get("label-column"))',
        after='bool(node_config.get("label-column", "label"))',
        tests=(REQUEST_TESTS,),
    ),
    Mutation(
        name="a server writes lines of its own by the names of classes",
        file="flower_privsyn/data/cut.py",
        function="_is_class_name",
        before=" and name.isprintable()",
        after="",
        tests=(VOTES_TESTS, LABEL_TESTS),
    ),
    Mutation(
        name="a server sends as many classes as it likes",
        file="flower_privsyn/data/cut.py",
        function="are_class_names",
        before="len(names) <= MOST_CLASSES\n        and all(",
        after="all(",
        tests=(VOTES_TESTS, LABEL_TESTS),
    ),
    Mutation(
        name="the best of all classes together survive",
        file="flower_privsyn/strategies/parts/evolution.py",
        function="Evolution._survivors",
        before="counts[members] = self._chosen(release, members, [number, place])",
        after="counts[members] = self._chosen(release, np.arange(m), [number, place])[members]",
        tests=(AUG_PE_TESTS,),
    ),
)
