from torch.utils.data import DataLoader

from template.data.dataset import collate
from template.data.phantom import Phantom


class Healthy(Phantom):
    def batch(self, samples):
        return collate(samples)

    def train_dataloader(self):
        dataset = self._dataset(self.cases("train"), [])
        return DataLoader(dataset, batch_size=4, collate_fn=self.batch)


class Broken(Healthy):
    def batch(self, samples):
        whole = collate(samples)
        return whole["image"], whole["mask"]
