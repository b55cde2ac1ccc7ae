"""A probe inside scikit-learn: in a pipeline, with its strength and method chosen by cross-validation.

    python examples/sklearn_pipeline.py

`ProbeClassifier` passes scikit-learn's own checks. In place of these pixels give the features of a backbone:
`probe.features.extract(backbones.load("effnet-lite0"), probe.data.load("pets")["train"]).X`.
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probe import ProbeClassifier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=0)

pipeline = make_pipeline(StandardScaler(), ProbeClassifier())
grid = {"probeclassifier__method": ["erm", "mr2"], "probeclassifier__l2": [1.0, 10.0]}
search = GridSearchCV(pipeline, grid, cv=3, scoring="balanced_accuracy").fit(X_train, y_train)
print(f"{search.best_params_}: {search.score(X_test, y_test):.3f} on test images")
