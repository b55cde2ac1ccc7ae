"""Why are some classes hard? The measurements of the papers, each a small function of plain arrays.

outputs      of logits: prediction bias, logit margins, confusions
confusion_matrix  which classes are mistaken for which, look-alikes side by side
weights      of a classifier: norms, class mean angle
features     of features: spread, variance norm, angles, separability, distances, t-SNE
classifiers  k-NN and a fixed equiangular classifier, to compare with the trained head
diagnose     all of them on one run, as the `diagnostics` block of result.json
look_first   which classes and images to look at first, and why; it puts together:
             suspects (wrong labels), neighbourhood (neighbours, near-duplicates), forecast, reasons
sampling     a part of a large split that has something of every class
"""
